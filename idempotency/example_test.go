package idempotency_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/idempotency"
	"github.com/warrenmq/warren/outbox"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/retry"
	"github.com/warrenmq/warren/workqueue"
)

// Payment is the payload of the examples.
type Payment struct {
	Account string
	Amount  int64
}

// book adds a payment to a balance. Were it called twice the balance would be wrong.
func book(ctx context.Context, tx pgx.Tx, d amqp.Delivery) error {
	var p Payment
	if err := json.Unmarshal(d.Body, &p); err != nil {
		return retry.Permanent(err) // to the dead-letter queue at once, also with a Retrier around
	}
	_, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance + $2 WHERE id = $1", p.Account, p.Amount)
	return err
}

// The whole pattern: a worker that books each payment once, however often its message comes. Any number of its instances
// share the queue and the table. A Retrier of package retry goes around the inbox: retrier.Handle(inbox.Handle(book)).
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	conn, err := reconnect.Dial(ctx, "amqp://guest:guest@localhost:5672/", reconnect.Config{Name: "billing"})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(context.Background())
	pool, err := pgxpool.New(ctx, "postgres://billing@localhost/billing?pool_max_conns=12") // more than there are handlers
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	inbox, err := idempotency.New(pool, "billing", idempotency.Config{})
	if err != nil {
		log.Fatal(err)
	}
	if err := inbox.Migrate(ctx); err != nil {
		log.Fatal(err)
	}
	payments := workqueue.Queue{Name: "payments"}
	worker, err := workqueue.NewWorker(conn, payments, inbox.Handle(book), workqueue.WorkerConfig{Concurrency: 8})
	if err != nil {
		log.Fatal(err)
	}

	ctx, cancel := context.WithCancel(ctx) // one that cannot go on ends the other
	defer cancel()
	swept := make(chan error, 1)
	go func() {
		defer cancel()
		swept <- inbox.Run(ctx) // removes keys that are older than the Retention
	}()
	err = worker.Run(ctx)
	cancel()
	if err := errors.Join(err, <-swept); err != nil {
		log.Print(err)
	}
}

// A key that says what the message is about, so that a sender which tells the same twice, under two ids, is heard once.
func ExampleConfig_key() {
	pool, err := pgxpool.New(context.Background(), "postgres://billing@localhost/billing")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	inbox, err := idempotency.New(pool, "billing", idempotency.Config{
		Key: func(d amqp.Delivery) string {
			var order struct{ ID, Version string }
			if json.Unmarshal(d.Body, &order) != nil || order.ID == "" {
				return "" // no key: to the dead-letter queue
			}
			return order.ID + "/" + order.Version
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	_ = inbox.Handle(book)
}

// A consumer that sends a message of its own: inbox and outbox in one transaction, so that the balance, the key and the
// receipt are there together or not at all. The relay is woken after the commit, which is when the handler has returned;
// without that the receipt leaves within the relay's PollInterval. Around all of it goes the Retrier.
func ExampleInbox_Handle() {
	withReceipt := func(inbox *idempotency.Inbox, box *outbox.Outbox, retrier *retry.Retrier) workqueue.Handler {
		booked := inbox.Handle(func(ctx context.Context, tx pgx.Tx, d amqp.Delivery) error {
			if err := book(ctx, tx, d); err != nil {
				return err
			}
			return box.Enqueue(ctx, tx, outbox.Message{Key: "receipts", Publishing: amqp.Publishing{CorrelationId: d.MessageId, Body: d.Body}})
		})
		return retrier.Handle(func(ctx context.Context, d amqp.Delivery) error {
			err := booked(ctx, d)
			if err == nil {
				box.Wake()
			}
			return err
		})
	}
	_ = withReceipt
}

// Something that has to happen once, without a message.
func ExampleInbox_Do() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://billing@localhost/billing")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	inbox, err := idempotency.New(pool, "monthly", idempotency.Config{Retention: -1})
	if err != nil {
		log.Fatal(err)
	}

	fresh, err := inbox.Do(ctx, "interest 2026-12", func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance + balance / 1000")
		return err
	})
	switch {
	case errors.Is(err, idempotency.ErrBusy): // another instance is at it
	case err != nil:
		log.Print(err)
	case !fresh: // it was done before
	}
}

// A transaction of one's own, here of database/sql: claim first, work if the key is new, commit, and only then acknowledge.
func ExampleInbox_Claim() {
	ctx := context.Background()
	db, err := sql.Open("pgx", "postgres://billing@localhost/billing") // import _ "github.com/jackc/pgx/v5/stdlib"
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	inbox, err := idempotency.New(nil, "billing", idempotency.Config{}) // no pool: Claim is all that is wanted
	if err != nil {
		log.Fatal(err)
	}

	work := func(ctx context.Context, d amqp.Delivery) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		fresh, err := inbox.Claim(ctx, idempotency.SQL(tx), d.MessageId)
		if err != nil || !fresh {
			return err // known: nil, and the message is acknowledged
		}
		if _, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance + 1"); err != nil {
			return err
		}
		return tx.Commit()
	}
	handle := func(ctx context.Context, d amqp.Delivery) error {
		return idempotency.NotNow(work(ctx, d)) // a database that is away is no fault of the message
	}
	_ = handle(ctx, amqp.Delivery{MessageId: "payment-1"})
}

// Many messages in one transaction. One that fails does so alone.
func ExampleInbox_HandleBatch() {
	ctx := context.Background()
	conn, err := reconnect.Dial(ctx, "amqp://guest:guest@localhost:5672/", reconnect.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(ctx)
	pool, err := pgxpool.New(ctx, "postgres://stats@localhost/stats")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	inbox, err := idempotency.New(pool, "stats", idempotency.Config{UUIDKeys: true}) // message ids of this module are UUIDs
	if err != nil {
		log.Fatal(err)
	}

	store := func(ctx context.Context, tx pgx.Tx, ds []amqp.Delivery) error {
		pages := make([]string, len(ds))
		for i, d := range ds {
			pages[i] = string(d.Body)
		}
		_, err := tx.Exec(ctx, "INSERT INTO clicks (page) SELECT unnest($1::text[])", pages)
		return err
	}
	worker, err := workqueue.NewBatchWorker(conn, workqueue.Queue{Name: "clicks"}, inbox.HandleBatch(store),
		workqueue.WorkerConfig{BatchSize: 500})
	if err != nil {
		log.Fatal(err)
	}
	if err := worker.Run(ctx); err != nil {
		log.Print(err)
	}
}

// A request that is worked on once, and answered with the same reply as often as it comes. A server of package rpc takes the
// handler as it is.
func ExampleInbox_HandleReply() {
	pool, err := pgxpool.New(context.Background(), "postgres://shop@localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	inbox, err := idempotency.New(pool, "charge", idempotency.Config{})
	if err != nil {
		log.Fatal(err)
	}

	charge := inbox.HandleReply(func(ctx context.Context, tx pgx.Tx, d amqp.Delivery) (amqp.Publishing, error) {
		tag, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance - 10 WHERE id = $1 AND balance >= 10", string(d.Body))
		if err != nil {
			return amqp.Publishing{}, err
		}
		if tag.RowsAffected() == 0 {
			return amqp.Publishing{Type: "refused"}, nil // a reply, and the same one when the request comes again
		}
		return amqp.Publishing{Type: "receipt"}, nil
	})
	_, _ = charge(context.Background(), amqp.Delivery{MessageId: "request-1", Body: []byte("a")})
}

// No table of keys: the order itself says whether it has been paid, and is locked while it is looked at.
func ExampleStateCheck() {
	pool, err := pgxpool.New(context.Background(), "postgres://shop@localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	_ = idempotency.StateCheck(pool, func(ctx context.Context, tx pgx.Tx, d amqp.Delivery) error {
		var state string
		if err := tx.QueryRow(ctx, "SELECT state FROM orders WHERE id = $1 FOR UPDATE", string(d.Body)).Scan(&state); err != nil {
			return err
		}
		if state == "paid" {
			return idempotency.ErrDone // and the message is acknowledged
		}
		_, err := tx.Exec(ctx, "UPDATE orders SET state = 'paid' WHERE id = $1", string(d.Body))
		return err
	})
}

// The same by a version that the message carries, in one statement: a message that comes again or that a newer one has
// overtaken changes nothing.
func ExampleStateCheck_version() {
	pool, err := pgxpool.New(context.Background(), "postgres://shop@localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	type change struct {
		ID      string
		Version int64
		Address string
	}
	_ = idempotency.StateCheck(pool, func(ctx context.Context, tx pgx.Tx, d amqp.Delivery) error {
		var c change
		if err := json.Unmarshal(d.Body, &c); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, "UPDATE orders SET address = $3, version = $2 WHERE id = $1 AND version < $2", c.ID, c.Version, c.Address)
		if err == nil && tag.RowsAffected() == 0 {
			return fmt.Errorf("order %s has version %d or a newer one: %w", c.ID, c.Version, idempotency.ErrDone)
		}
		return err
	})
}
