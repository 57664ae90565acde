package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/idempotency"
	"github.com/warrenmq/warren/outbox"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

// Environment of a process that is the shop or the bank: which, and where everything is.
const (
	roleEnv  = "WARREN_PAYMENTS_ROLE"
	worldEnv = "WARREN_PAYMENTS_WORLD"
)

// Pauses between attempts, shorter than a service would have them: somebody watches.
const (
	shortPause = 20 * time.Millisecond
	longPause  = 200 * time.Millisecond
)

var quiet = slog.New(slog.DiscardHandler) // connections are lost all the time here

// payment is the message.
type payment struct {
	Account int
	Amount  int64 // in cents
}

// play is the main function of a process that is to be killed. It stops in good order when its standard input ends, which
// is at the latest when its parent does.
func play(role string) (exit int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	go func() {
		defer stop()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	var w world
	err := json.Unmarshal([]byte(os.Getenv(worldEnv)), &w)
	if err == nil {
		err = map[string]func(context.Context, world) error{"shop": shop, "bank": bank}[role](ctx, w)
	}
	if err != nil && !errors.Is(err, context.Canceled) { // that is the end of one stopped while it was still connecting
		fmt.Fprintln(os.Stderr, role+":", err)
		return 1
	}
	return 0
}

// shop takes orders, and runs the relay that sends the messages about them.
func shop(ctx context.Context, w world) error {
	pool, err := pgxpool.New(ctx, w.Database)
	if err != nil {
		return err
	}
	defer pool.Close()
	conn, err := w.dial(ctx, "shop")
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	box, err := outbox.New(pool, outbox.Config{Logger: quiet})
	if err != nil {
		return err
	}
	pub, err := conn.NewPublisher(reconnect.PublisherConfig{Window: 1000})
	if err != nil {
		return err
	}
	relay, err := outbox.NewRelay(box, stutter{pub}, outbox.RelayConfig{})
	if err != nil {
		return err
	}
	open := make(chan struct{})
	go func() {
		defer close(open)
		for takeOrders(ctx, pool, box, w.Queue) != nil && ctx.Err() == nil {
			pause(ctx, shortPause) // the database is away
		}
	}()
	err = relay.Run(ctx)
	<-open
	return err
}

// errShut ends the taking of orders.
var errShut = errors.New("the shop is closed")

// takeOrders takes orders until the shop is closed.
func takeOrders(ctx context.Context, pool *pgxpool.Pool, box *outbox.Outbox, queue string) error {
	for {
		p := payment{Account: rand.IntN(accounts), Amount: rand.Int64N(10_000)}
		err := box.InTx(ctx, func(tx pgx.Tx) error { // the order and the message about it: both, or neither
			var open bool
			// Whoever closes the shop waits for the order that has seen it open.
			if err := tx.QueryRow(ctx, "SELECT open FROM shop FOR SHARE").Scan(&open); err != nil {
				return err
			}
			if !open {
				return errShut
			}
			if _, err := tx.Exec(ctx, "INSERT INTO orders (account, amount) VALUES ($1, $2)", p.Account, p.Amount); err != nil {
				return err
			}
			return box.Enqueue(ctx, tx, outbox.Message{Key: queue, JSON: p})
		})
		if errors.Is(err, errShut) {
			return nil
		}
		if err != nil {
			return err
		}
		pause(ctx, rand.N(4*time.Millisecond))
	}
}

// stutter sends every tenth message twice, as relays do that die before they know what has arrived.
type stutter struct{ *reconnect.Publisher }

func (s stutter) PublishBatch(ctx context.Context, msgs []reconnect.Message) error {
	var twice []reconnect.Message
	for _, m := range msgs {
		if rand.IntN(10) == 0 {
			twice = append(twice, m)
		}
	}
	_ = s.Publisher.PublishBatch(ctx, twice) // whatever becomes of them
	return s.Publisher.PublishBatch(ctx, msgs)
}

// bank books payments.
func bank(ctx context.Context, w world) error {
	pool, err := pgxpool.New(ctx, w.Database)
	if err != nil {
		return err
	}
	defer pool.Close()
	conn, err := w.dial(ctx, "bank")
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	inbox, err := idempotency.New(pool, "bank", idempotency.Config{UUIDKeys: true, Logger: quiet})
	if err != nil {
		return err
	}
	book := inbox.Handle(func(ctx context.Context, tx pgx.Tx, d amqp.Delivery) error {
		var p payment
		if err := json.Unmarshal(d.Body, &p); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance + $2 WHERE id = $1", p.Account, p.Amount)
		return err
	})
	worker, err := workqueue.NewWorker(conn, w.queue(), func(ctx context.Context, d amqp.Delivery) error {
		// Only to tell afterwards how often messages came: in a transaction of its own, and not needed for the sums.
		_, _ = pool.Exec(ctx, "INSERT INTO arrivals VALUES ($1) ON CONFLICT (id) DO UPDATE SET times = arrivals.times + 1", d.MessageId)
		return book(ctx, d)
	}, workqueue.WorkerConfig{Concurrency: 4, Prefetch: 10})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	swept := make(chan error, 1)
	go func() { swept <- inbox.Run(ctx) }()
	err = worker.Run(ctx)
	cancel()
	return errors.Join(err, <-swept)
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
