package consistenthash_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os/signal"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/routing/consistenthash"
)

// Change is the payload of the examples.
type Change struct {
	Booking, What string
}

func apply(ctx context.Context, c Change) error { return ctx.Err() }

// The whole pattern: the changes of one booking are applied in order, those of different bookings in parallel.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()

	conn, err := reconnect.Dial(ctx, "amqp://guest:guest@localhost:5672/", reconnect.Config{Name: "bookings"})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(context.Background())

	bookings := consistenthash.Partitions{Name: "bookings", Count: 8}

	publisher, err := consistenthash.NewPublisher(conn, bookings, reconnect.PublisherConfig{})
	if err != nil {
		log.Fatal(err)
	}
	for _, what := range []string{"create", "change", "cancel"} { // one after the other: each is confirmed before the next
		if err := publisher.PublishJSON(ctx, "b-17", Change{"b-17", what}); err != nil {
			log.Print(err)
		}
	}

	consumer, err := consistenthash.NewConsumer(conn, bookings, consistenthash.JSON(apply), consistenthash.ConsumerConfig{})
	if err != nil {
		log.Fatal(err)
	}
	if err := consumer.Run(ctx); err != nil { // until Ctrl-C, then until what was begun is done
		log.Print(err)
	}
}

// Many messages at once, in order: a batch does not wait for each.
func ExamplePublisher_PublishBatch() {
	ctx := context.Background()
	conn, err := reconnect.Dial(ctx, "amqp://guest:guest@localhost:5672/", reconnect.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(ctx)
	publisher, err := consistenthash.NewPublisher(conn, consistenthash.Partitions{Name: "bookings", Count: 8}, reconnect.PublisherConfig{})
	if err != nil {
		log.Fatal(err)
	}
	var batch []reconnect.Message
	for _, booking := range []string{"b-17", "b-18", "b-19"} {
		for _, what := range []string{"create", "change", "cancel"} {
			batch = append(batch, reconnect.Message{Key: booking, Publishing: amqp.Publishing{Body: []byte(what)}})
		}
	}
	err = publisher.PublishBatch(ctx, batch)
	var failed reconnect.BatchError
	if errors.As(err, &failed) {
		for i, err := range failed {
			if err != nil {
				log.Printf("message %d: %v", i, err)
			}
		}
	}
}

// How a failure is treated: a short outage is waited out in place; what stays broken goes to the dead-letter queue, and the key
// goes on. HandlerTimeout is that of one attempt.
func ExampleNewConsumer() {
	ctx := context.Background()
	conn, err := reconnect.Dial(ctx, "amqp://guest:guest@localhost:5672/", reconnect.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(ctx)
	handler := func(ctx context.Context, d amqp.Delivery) error {
		log.Printf("%s: %s", d.RoutingKey, d.Body) // the key, whoever hashed it
		return nil
	}
	consumer, err := consistenthash.NewConsumer(conn, consistenthash.Partitions{Name: "bookings", Count: 8}, handler,
		consistenthash.ConsumerConfig{MaxAttempts: 8, InitialDelay: 50 * time.Millisecond, HandlerTimeout: 30 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		<-consumer.Ready()
		<-time.After(time.Minute)
		for partition, n := range consumer.Counts() { // a count that runs away: a few keys have most of the messages
			log.Printf("partition %d: %d", partition, n)
		}
	}()
	if err := consumer.Run(ctx); err != nil {
		log.Print(err)
	}
}

// More partitions, once and with everything stopped; afterwards every program is started with the new number. A program that
// was forgotten gets ErrCountChanged.
func ExampleResize() {
	ctx := context.Background()
	conn, err := reconnect.Dial(ctx, "amqp://guest:guest@localhost:5672/", reconnect.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(ctx)
	bookings := consistenthash.Partitions{Name: "bookings", Count: 8}
	moved, err := consistenthash.Resize(ctx, conn, bookings, 16)
	if errors.Is(err, consistenthash.ErrCountChanged) {
		log.Fatal("neither 8 nor on the way from 8 to 16: ", err)
	}
	if err != nil {
		log.Fatal("nothing is lost, call it again: ", err)
	}
	log.Printf("%d waiting messages are in their new partitions", moved)
}

// Where a key goes is known without a broker.
func ExamplePartitions_Of() {
	bookings := consistenthash.Partitions{Name: "bookings", Count: 8}
	for _, key := range []string{"b-17", "b-18"} {
		fmt.Println(key, "->", bookings.Queue(bookings.Of(key)))
	}
	// Output:
	// b-17 -> bookings.002
	// b-18 -> bookings.007
}
