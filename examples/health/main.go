// Health: a service that says whether it lives, whether it is ready, and what it is doing.
//
//	go run ./examples/health [-listen 127.0.0.1:8080]
//
// A worker handles a message each second while the program serves /livez, /readyz and /statez. Stop the broker, or let it
// run into an alarm, and look again: it stays alive, is not ready, and says why; then it comes back by itself. The broker
// is the one of AMQP_URL; without that the program starts one of its own, in a container or from the machine's binaries.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/warrenmq/warren/internal/testenv/provide"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8080", "address to serve on")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the first Ctrl-C drains, a second one ends the program at once
	if err := run(ctx, *listen); err != nil {
		fmt.Fprintln(os.Stderr, "health:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, listen string) (err error) {
	fmt.Println("looking for a broker, or starting one ...")
	broker, err := provide.StartNode(ctx)
	if err != nil {
		return fmt.Errorf("no broker (make setup provides one): %w", err)
	}
	defer func() { err = errors.Join(err, broker.Remove()) }()
	socket, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	fmt.Printf("http://%[1]s/livez  http://%[1]s/readyz  http://%[1]s/statez\n", socket.Addr())
	return serve(ctx, broker.URL, workqueue.Queue{Name: "health.ticks"}, socket)
}

// serve runs the worker and serves on socket until ctx ends.
func serve(ctx context.Context, url string, queue workqueue.Queue, socket net.Listener) (err error) {
	// Lazy, so that the service lives, and says what it waits for, while there is no broker yet.
	conn, err := reconnect.Dial(ctx, url, reconnect.Config{Name: "health", Lazy: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.Background())) }()
	worker, err := workqueue.NewWorker(conn, queue, tick, workqueue.WorkerConfig{})
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler(conn, worker.Ready()), ReadHeaderTimeout: 5 * time.Second}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	worked, served := make(chan error, 2), make(chan error, 1)
	go func() { worked <- worker.Run(ctx) }()
	go func() { worked <- produce(ctx, conn, queue) }()
	go func() { served <- server.Serve(socket) }()

	running := cap(worked)
	select {
	case err = <-worked: // what cannot be mended: the platform may start the service again
		running--
	case err = <-served:
	case <-ctx.Done():
	}
	cancel()
	for range running { // the worker drains while /livez still answers
		err = errors.Join(err, <-worked)
	}
	closing, stop := context.WithTimeout(context.Background(), 5*time.Second)
	defer stop()
	return errors.Join(err, server.Shutdown(closing), remove(closing, conn, queue))
}
