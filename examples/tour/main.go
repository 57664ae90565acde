// Tour: what the packages of this module do, told while it happens.
//
//	go run ./examples/tour
//
// Every chapter says what will happen, lets it happen on a real broker, and compares the figures with what they must be.
// The exit status is 0 only if all of them came out right. The broker is the one of AMQP_URL and
// the database of DATABASE_URL; without these the tour starts its own, in a container or from the machine's binaries. It leaves nothing behind on either. What breaks a
// whole broker is left out where that is not the tour's own.
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

	"github.com/warrenmq/warren/internal/testenv/provide"
)

// chapters, in the order in which they are told. Each stands alone, in a file of its own.
var chapters = []chapter{
	{title: "A work queue: one queue, many workers, each message to exactly one of them", tell: workQueue},
	{title: "Publish and subscribe: every subscriber gets a copy", tell: publishSubscribe},
	{title: "Direct routing: by exact keys", tell: directRouting},
	{title: "Topic routing: by patterns", tell: topicRouting},
	{title: "Partitions: the order of each key, and keys in parallel", tell: partitions},
	{title: "What fails is tried again, later; what is given up can be looked at, and sent back", tell: retries},
	{title: "Request and reply: calls with deadlines, and errors that tell", tell: requestReply},
	{title: "An outbox: what was committed is sent, and nothing else", tell: transactionalOutbox, stores: true},
	{title: "Orders and payments: each takes effect once, whatever is cut off", tell: payments, stores: true},
	{title: "The broker freezes, and runs out of memory", tell: outage, breaks: true},
}

type chapter struct {
	title  string
	tell   func(ctx context.Context, t *tour) error
	breaks bool // it breaks the whole broker
	stores bool // it needs a database
}

// limit is how long the chapters may take; they need about twenty seconds.
const limit = 3 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the tour at once
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "tour:", err)
		os.Exit(1)
	}
}

// run provides a broker and a database, and tells all chapters.
func run(ctx context.Context, out io.Writer) (err error) {
	fmt.Fprintln(out, "warren: a tour. Looking for a broker and a database ...")
	broker, err := provide.StartNode(ctx)
	if err != nil {
		return fmt.Errorf("no broker (make setup provides one): %w", err)
	}
	defer func() { err = errors.Join(err, broker.Remove()) }()
	fmt.Fprintf(out, "RabbitMQ %s (%s)\n", broker.Version, broker.Kind)
	var own node
	if broker.Kind != provide.URL {
		own = broker
	}
	t := newTour(out, broker.URL, own)
	server, database, err := provide.StartDatabase(ctx)
	if err != nil {
		fmt.Fprintln(out, "no PostgreSQL (make setup provides one), so what needs it is left out:", err)
		return tellAll(ctx, t)
	}
	defer func() { err = errors.Join(err, server.Remove()) }()
	fmt.Fprintf(out, "PostgreSQL (%s)\n", server.Kind)
	t.database = database
	return tellAll(ctx, t)
}

// tellAll tells every chapter, and fails when one could not be told to its end or a figure was wrong.
func tellAll(ctx context.Context, t *tour) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	start, told := time.Now(), 0
	for i, c := range chapters {
		t.heading("%d. %s", i+1, c.title)
		if c.breaks && t.node == nil {
			t.leaveOut()
			continue
		}
		if c.stores && t.database == "" {
			t.say("LEFT OUT: this chapter needs a PostgreSQL server.")
			continue
		}
		if err := c.tell(ctx, t); err != nil {
			return fmt.Errorf("chapter %d: %w", i+1, err)
		}
		told++
	}
	leftOut := ""
	if n := len(chapters) - told; n > 0 {
		leftOut = fmt.Sprintf("; %d of %d chapters left out", n, len(chapters))
	}
	t.heading("The end, after %.1f s: %d of %d figures came out right%s", time.Since(start).Seconds(), t.right, t.right+t.wrong, leftOut)
	if t.wrong > 0 {
		return fmt.Errorf("%d of %d figures are wrong", t.wrong, t.right+t.wrong)
	}
	return nil
}
