// Thumbnails: a producer and several workers share a queue of pictures.
//
//	go run ./examples/workqueue [-workers N] [-out FOLDER] [-restart] [PICTURE or FOLDER]...
//
// Each JPEG or PNG becomes three smaller ones, 64, 256 and 1024 wide. A picture that cannot be done ends in the
// dead-letter queue and holds nobody up. With -restart the broker is restarted in the middle of it. The broker is the one
// of AMQP_URL; without that the program starts one of its own, in a container or from the machine's binaries.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/warrenmq/warren/internal/testenv/provide"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

// shipped are the pictures for whoever names none.
const shipped = "examples/workqueue/testdata"

func main() {
	var o options
	flag.IntVar(&o.workers, "workers", runtime.NumCPU(), "pictures that are done at once")
	flag.StringVar(&o.out, "out", "", "folder for the thumbnails (default: a new temporary one)")
	flag.BoolVar(&o.restart, "restart", false, "restart the broker half-way, if this program started it")
	flag.Parse()
	o.args = flag.Args()
	if len(o.args) == 0 {
		o.args = []string{shipped}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the first Ctrl-C drains, a second one ends the program at once
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "workqueue:", err)
		os.Exit(1)
	}
}

type options struct {
	workers int
	out     string
	restart bool
	args    []string
}

func run(ctx context.Context, o options) (err error) {
	album, err := newAlbum(o.args, o.out)
	if err != nil {
		return err
	}
	broker, err := provide.StartNode(ctx)
	if err != nil {
		return fmt.Errorf("no broker (make setup provides one): %w", err)
	}
	defer func() { err = errors.Join(err, broker.Remove()) }()
	if o.restart && broker.Kind == provide.URL {
		return errors.New("-restart: the broker of AMQP_URL is yours to restart, at any time; this program rides it out")
	}
	fmt.Printf("RabbitMQ %s (%s), %d pictures, %d workers\n", broker.Version, broker.Kind, len(album.paths), o.workers)

	conn, err := reconnect.Dial(ctx, broker.URL, reconnect.Config{
		Name:       "example-workqueue",
		BackoffMax: time.Second, // somebody watches
	})
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())

	// The queue is this run's own, as the numbers in its messages are, and goes with it.
	queue := workqueue.Queue{Name: "images.to-process." + uuid.NewString()[:8]}
	defer func() { err = errors.Join(err, deleteQueues(conn, queue)) }()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	job := job{conn: conn, queue: queue, album: album, workers: o.workers}
	outage := outage{broker: broker, giveUp: cancel}
	if o.restart {
		job.halfway = outage.begin
	}
	err = job.run(ctx)
	if err := errors.Join(err, outage.end()); err != nil {
		return err
	}
	return job.report(os.Stdout)
}
