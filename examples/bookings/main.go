// Bookings: each is created, changed and cancelled, and whoever applies these must do it in that order.
//
//	go run ./examples/bookings [-bookings N]
//
// They have come in over night, and when the desk opens they wait in the broker. First in a plain work queue with several
// workers, which mixes them up. Then in partitions: what belongs to one booking is applied one after the other, and bookings run
// in parallel all the same. The broker is the one of AMQP_URL; without that the program starts one of its own, in a container or from the
// machine's binaries.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/google/uuid"

	"github.com/warrenmq/warren/internal/testenv/provide"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/routing/consistenthash"
	"github.com/warrenmq/warren/workqueue"
)

func main() {
	bookings := flag.Int("bookings", 60, "how many")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the first Ctrl-C drains, a second one ends the program at once
	if err := run(ctx, *bookings); err != nil {
		fmt.Fprintln(os.Stderr, "bookings:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, bookings int) (err error) {
	broker, err := provide.StartNode(ctx)
	if err != nil {
		return fmt.Errorf("no broker (make setup provides one): %w", err)
	}
	defer func() { err = errors.Join(err, broker.Remove()) }()
	fmt.Printf("RabbitMQ %s (%s): %d bookings, each is created, changed and cancelled\n", broker.Version, broker.Kind, bookings)
	conn, err := reconnect.Dial(ctx, broker.URL, reconnect.Config{Name: "example-bookings"})
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	_, _, err = compare(ctx, os.Stdout, conn, bookings)
	return err
}

// compare sends the same bookings both ways. What it declares is its own, and goes with it.
func compare(ctx context.Context, out io.Writer, conn *reconnect.Conn, bookings int) (queued, partitioned result, err error) {
	name := "bookings." + uuid.NewString()[:8]
	if queued, err = throughQueue(ctx, conn, workqueue.Queue{Name: name + ".plain"}, bookings); err != nil {
		return
	}
	fmt.Fprintf(out, "\na work queue with %d workers:\n%s", workers, queued)
	if partitioned, err = throughPartitions(ctx, conn, consistenthash.Partitions{Name: name, Count: workers}, bookings); err != nil {
		return
	}
	fmt.Fprintf(out, "\n%d partitions, shared by %d instances:\n%s", workers, instances, partitioned)
	return
}

const (
	workers   = 8 // at once, either way
	instances = 2
)

func throughQueue(ctx context.Context, conn *reconnect.Conn, queue workqueue.Queue, bookings int) (r result, err error) {
	defer func() { err = errors.Join(err, remove(conn, queue.Topology())) }()
	producer, err := workqueue.NewProducer(conn, queue, reconnect.PublisherConfig{})
	if err != nil {
		return r, err
	}
	desk := newDesk(bookings)
	worker, err := workqueue.NewWorker(conn, queue, workqueue.JSON(desk.apply), workqueue.WorkerConfig{Concurrency: workers})
	if err != nil {
		return r, err
	}
	for _, c := range desk.mail() {
		if err := producer.PublishJSON(ctx, c); err != nil {
			return r, err
		}
	}
	err = desk.open(ctx, []runner{worker})
	return desk.result(), err
}

func throughPartitions(ctx context.Context, conn *reconnect.Conn, p consistenthash.Partitions, bookings int) (r result, err error) {
	defer func() { err = errors.Join(err, remove(conn, p.Topology())) }()
	publisher, err := consistenthash.NewPublisher(conn, p, reconnect.PublisherConfig{})
	if err != nil {
		return r, err
	}
	desk := newDesk(bookings)
	var consumers []runner
	for range instances { // usually in processes of their own
		c, err := consistenthash.NewConsumer(conn, p, consistenthash.JSON(desk.apply), consistenthash.ConsumerConfig{})
		if err != nil {
			return r, err
		}
		consumers = append(consumers, c)
	}
	for _, c := range desk.mail() {
		if err := publisher.PublishJSON(ctx, c.Booking, c); err != nil {
			return r, err
		}
	}
	err = desk.open(ctx, consumers)
	return desk.result(), err
}
