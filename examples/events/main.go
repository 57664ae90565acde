// Events: who gets which event, by the pattern that its routing key matches.
//
//	go run ./examples/events [KEY]...
//
// Each pattern has a queue and a subscriber. The keys are published, and the table shows which queue the broker led them
// to; the program fails if topic.Match says anything else. A mux then sorts them within one queue. The broker is the one of
// AMQP_URL; without that the program starts one of its own, in a container or from the machine's binaries.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/warrenmq/warren/internal/testenv/provide"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/routing/topic"
)

var (
	patterns = []string{"order.#", "*.*.eu", "payment.failed.#", "#.card.*"}
	keys     = []string{"order.created.us", "order.cancelled.eu", "order.cancelled", "payment.failed.eu", "payment.failed.card.us", "refund.issued.us"}
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	if len(os.Args) > 1 {
		keys = os.Args[1:]
	}
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "events:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	broker, err := provide.StartNode(ctx)
	if err != nil {
		return fmt.Errorf("no broker (make setup provides one): %w", err)
	}
	defer func() { err = errors.Join(err, broker.Remove()) }()
	fmt.Printf("RabbitMQ %s (%s)\n", broker.Version, broker.Kind)
	conn, err := reconnect.Dial(ctx, broker.URL, reconnect.Config{Name: "example-events"})
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	// Everything is this run's own, on a broker that others use too, and goes with it.
	return story(ctx, conn, "events."+uuid.NewString()[:8], os.Stdout)
}

// limit is how long the story may take; it needs about two seconds.
const limit = time.Minute

func story(ctx context.Context, conn *reconnect.Conn, name string, out io.Writer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	b := newBoard(conn, name, out)
	defer func() { err = errors.Join(err, b.close()) }()

	fmt.Fprint(out, "\nWhere the broker leads each key:\n\n")
	for _, pattern := range patterns {
		if err := b.listen(ctx, pattern, []string{pattern}, b.note(pattern)); err != nil {
			return err
		}
	}
	if err := b.table(ctx); err != nil {
		return err
	}

	fmt.Fprint(out, "\nOne queue with several patterns, and a mux that gives each message to the most specific one:\n\n")
	mux := topic.Mux{}
	for _, pattern := range append(patterns, "#") {
		mux[pattern] = b.note("mux " + pattern)
	}
	if err := b.listen(ctx, "mux", mux.Patterns(), mux.Handle); err != nil {
		return err
	}
	return b.sorted(ctx, mux)
}
