package outbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/outbox"
	"github.com/warrenmq/warren/reconnect"
)

// Order is the payload of the examples.
type Order struct {
	ID    int64
	Total int64 // in cents
}

// The whole pattern: a service that takes orders, and the relay that tells others of them. Both may be in one program, as
// here, or in several, any number of instances of each.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()

	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	conn, err := reconnect.Dial(ctx, "amqp://guest:guest@localhost:5672/", reconnect.Config{Name: "orders"})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(context.Background())

	box, err := outbox.New(pool, outbox.Config{})
	if err != nil {
		log.Fatal(err)
	}
	if err := box.Migrate(ctx); err != nil {
		log.Fatal(err)
	}

	order := Order{ID: 42, Total: 1999}
	err = box.InTx(ctx, func(tx pgx.Tx) error { // both or neither
		if _, err := tx.Exec(ctx, "INSERT INTO orders (id, total) VALUES ($1, $2)", order.ID, order.Total); err != nil {
			return err
		}
		return box.Enqueue(ctx, tx, outbox.Message{
			Exchange: "orders", Key: "order.created", OrderingKey: strconv.FormatInt(order.ID, 10), JSON: order,
		})
	})
	if err != nil {
		log.Print(err)
	}

	pub, err := conn.NewPublisher(reconnect.PublisherConfig{Window: 1000}) // the relay's own
	if err != nil {
		log.Fatal(err)
	}
	relay, err := outbox.NewRelay(box, pub, outbox.RelayConfig{})
	if err != nil {
		log.Fatal(err)
	}
	if err := relay.Run(ctx); err != nil { // until Ctrl-C, then until what was sent is confirmed
		log.Print(err)
	}
}

// In a transaction that is begun and committed elsewhere. Wake after the commit has the messages sent at once.
func ExampleOutbox_Enqueue() {
	take := func(ctx context.Context, pool *pgxpool.Pool, box *outbox.Outbox, orders []Order) error {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback(ctx) }() // nothing, after the commit
		msgs := make([]outbox.Message, len(orders))
		for i, order := range orders {
			msgs[i] = outbox.Message{Exchange: "orders", Key: "order.created", JSON: order}
		}
		if err := box.Enqueue(ctx, tx, msgs...); err != nil { // one statement, however many
			return err
		}
		if err := tx.Commit(ctx); err != nil {
			return err
		}
		box.Wake()
		return nil
	}
	_ = take
}

// The transaction of a program that uses database/sql, with the driver github.com/jackc/pgx/v5/stdlib. Its Outbox needs a
// pool only if it is to do more than enqueue.
func ExampleSQL() {
	take := func(ctx context.Context, db *sql.DB, box *outbox.Outbox, order Order) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if _, err := tx.ExecContext(ctx, "INSERT INTO orders (id, total) VALUES ($1, $2)", order.ID, order.Total); err != nil {
			return err
		}
		if err := box.Enqueue(ctx, outbox.SQL(tx), outbox.Message{Exchange: "orders", Key: "order.created", JSON: order}); err != nil {
			return err
		}
		return tx.Commit()
	}
	_ = take
}

// With the round trip of the change itself. A pool sends a batch as one transaction.
func ExampleOutbox_EnqueueBatch() {
	take := func(ctx context.Context, pool *pgxpool.Pool, box *outbox.Outbox, order Order) error {
		batch := new(pgx.Batch)
		batch.Queue("INSERT INTO orders (id, total) VALUES ($1, $2)", order.ID, order.Total)
		if err := box.EnqueueBatch(batch, outbox.Message{Exchange: "orders", Key: "order.created", JSON: order}); err != nil {
			return err
		}
		if err := pool.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
		box.Wake()
		return nil
	}
	_ = take
}

// A message that is to leave later, under an id that its sender has chosen.
func ExampleMessage() {
	reminder := outbox.Message{
		Key:       "mails.to-send", // a queue, through the default exchange
		NotBefore: time.Now().Add(24 * time.Hour),
		Publishing: amqp.Publishing{
			MessageId:   uuid.NewString(),
			ContentType: "text/plain",
			Headers:     amqp.Table{"customer": int64(42)},
			Body:        []byte("Did you like it?"),
		},
	}
	_ = reminder
}

// What the broker would not take is kept aside. Here is what an operator does about it.
func ExampleOutbox_Parked() {
	retry := func(ctx context.Context, box *outbox.Outbox) error {
		for message, err := range box.Parked(ctx) {
			if err != nil {
				return err
			}
			fmt.Printf("%s to %q, %d attempts until %v: %s\n", message.ID, message.Exchange, message.Attempts, message.At, message.Reason)
			if message.Exchange == "orders" { // which has a queue again
				if err := box.Requeue(ctx, message.ID); err != nil {
					return err
				}
			}
		}
		return nil
	}
	_ = retry
}

// The statements for a migration tool, instead of Migrate.
func ExampleOutbox_DDL() {
	box, err := outbox.New(nil, outbox.Config{Schema: "messages", Lanes: 4})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(box.DDL()[:41])
	// Output: CREATE SCHEMA IF NOT EXISTS "messages";
}
