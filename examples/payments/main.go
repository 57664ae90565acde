// Payments: money that is counted exactly while everything around it is killed.
//
//	go run ./examples/payments [-kills N]
//
// A shop takes orders. Each is stored in one transaction with the message about it (package outbox), which a relay sends to
// the queue of a bank. The bank adds the amount to the customer's balance in one transaction with the message's id (package
// idempotency). Shop and bank are processes of their own, and this program kills them, without warning and in the middle of
// their work, over and over; the broker is restarted, the database crashes, and the shop sends every tenth message twice. In
// the end the shop's sums and the bank's balances are compared, to the unit.
//
// The broker and the database are those of AMQP_URL and DATABASE_URL; without these the program starts its own, in
// containers or from the machine's binaries. Those of somebody else are left whole.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/google/uuid"

	"github.com/warrenmq/warren/internal/testenv/provide"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

func main() {
	if role := os.Getenv(roleEnv); role != "" {
		os.Exit(play(role)) // this is the shop, or the bank
	}
	kills := flag.Int("kills", 20, "how often a process is killed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	if err := run(ctx, *kills); err != nil {
		fmt.Fprintln(os.Stderr, "payments:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, kills int) (err error) {
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

	w := world{Broker: broker.URL, Database: database, Queue: "payments." + uuid.NewString()[:8]}
	var own []service
	if broker.Kind != provide.URL {
		own = append(own, service{"the broker", "restart", func() error { return errors.Join(broker.Stop(ctx), broker.Start(ctx)) }})
	}
	if server.Kind != provide.URL {
		own = append(own, service{"the database", "crash", func() error { return errors.Join(server.Crash(), server.Start(ctx)) }})
	}
	result, err := direct(ctx, os.Stdout, w, own, kills)
	if err != nil {
		return err
	}
	return result.print(os.Stdout)
}

// world is where everything is. Every process is told.
type world struct {
	Broker, Database, Queue string
}

func (w world) queue() workqueue.Queue { return workqueue.Queue{Name: w.Queue} }

// service is a server that may be broken.
type service struct {
	name   string
	fault  string
	strike func() error // and mended
}

// dial connects to the broker, and waits for it if need be.
func (w world) dial(ctx context.Context, name string) (*reconnect.Conn, error) {
	return reconnect.Dial(ctx, w.Broker, reconnect.Config{Name: name, Logger: quiet, BackoffMin: shortPause, BackoffMax: longPause})
}
