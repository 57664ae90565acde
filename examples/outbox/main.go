// Outbox: an order service that is killed at the two worst moments.
//
//	go run ./examples/outbox
//
// The service stores each order and the event about it in one transaction, and a relay sends what is stored. It is a process
// of its own, which this program starts three times. The first is killed after orders were committed and before their events
// were published; the second after events were confirmed by the broker and before their rows were deleted; the third is left
// alone. A warehouse takes the events. In the end every order has arrived. Some events came twice, with the id they had the
// first time, by which a warehouse with an inbox (package idempotency) would know them.
//
// The broker and the database are those of AMQP_URL and DATABASE_URL; without these the program starts its own, in
// containers or from the machine's binaries.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/warrenmq/warren/internal/testenv/provide"
	"github.com/warrenmq/warren/outbox"
)

// perLife is how many orders a life of the service takes.
const perLife = 50

func main() {
	if os.Getenv(lifeEnv) != "" {
		os.Exit(live()) // this is the service
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "outbox:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	broker, err := provide.StartNode(ctx)
	if err != nil {
		return fmt.Errorf("no broker (make setup provides one): %w", err)
	}
	defer func() { err = errors.Join(err, broker.Remove()) }()
	server, database, err := provide.StartDatabase(ctx)
	if err != nil {
		return fmt.Errorf("no database (make setup provides one): %w", err)
	}
	defer func() { err = errors.Join(err, server.Remove()) }()
	fmt.Printf("RabbitMQ %s (%s), PostgreSQL (%s)\n", broker.Version, broker.Kind, server.Kind)
	return tell(ctx, os.Stdout, place{Broker: broker.URL, Database: database, Queue: "orders." + uuid.NewString()[:8]})
}

// tell runs the lives of the service, and compares what was ordered with what has arrived.
func tell(ctx context.Context, out io.Writer, at place) (err error) {
	pool, err := pgxpool.New(ctx, at.Database)
	if err != nil {
		return err
	}
	defer pool.Close()
	box, err := outbox.New(pool, outbox.Config{Logger: quiet})
	if err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, "CREATE TABLE orders (id uuid PRIMARY KEY)"); err != nil {
		return err
	}
	if err := box.Migrate(ctx); err != nil {
		return err
	}
	w, err := openWarehouse(ctx, at)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()

	for _, life := range []struct {
		name, what string
		confirmed  int // events, in its life and before
	}{
		{afterCommit, "committed 50 orders, and was killed before it published an event", 0},
		{afterConfirm, "committed 50 more, published, and was killed before it deleted what was confirmed", 2 * perLife},
		{unharmed, "committed 50 more, published what there was, and stopped when it was told to", 5 * perLife},
	} {
		if err := spawn(ctx, life.name, at); err != nil {
			return err
		}
		stats, err := box.Stats(ctx)
		if err != nil {
			return err
		}
		w.settle(ctx, life.confirmed)
		fmt.Fprintf(out, "The service %s:\n", life.what)
		fmt.Fprintf(out, "  %d rows wait in the outbox, %d events have come, %d of them again\n", stats.Waiting, w.came(), w.again())
	}
	return w.compare(ctx, out, pool)
}
