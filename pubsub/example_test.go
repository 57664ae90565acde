package pubsub_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os/signal"
	"sync"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/pubsub"
	"github.com/warrenmq/warren/reconnect"
)

// Order is the payload of the examples.
type Order struct{ ID int64 }

func bill(ctx context.Context, o Order) error { return ctx.Err() }

// The whole pattern: a service announces orders, and the billing service, however many instances it has, bills each once.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	conn, err := reconnect.Dial(ctx, "amqp://guest:guest@localhost:5672/", reconnect.Config{Name: "billing"})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(context.Background())

	orders := pubsub.Exchange{Name: "orders"}

	publisher, err := pubsub.NewPublisher(conn, orders, reconnect.PublisherConfig{})
	if err != nil {
		log.Fatal(err)
	}
	if err := publisher.PublishJSON(ctx, Order{ID: 42}); err != nil { // nil: every subscription has it safely
		log.Print(err)
	}

	billing := pubsub.Subscription{Exchange: orders, Queue: "billing.orders"}
	subscriber, err := pubsub.NewSubscriber(conn, billing, pubsub.JSON(bill), pubsub.SubscriberConfig{Concurrency: 4})
	if err != nil {
		log.Fatal(err)
	}
	if err := subscriber.Run(ctx); err != nil { // until Ctrl-C, then until what was begun is done
		log.Print(err)
	}
}

// Every instance keeps its cache fresh: it forgets what has changed, and everything when it may have missed a change.
func ExampleNewLiveSubscriber() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	conn, err := reconnect.Dial(ctx, "amqp://guest:guest@localhost:5672/", reconnect.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(context.Background())

	var cache sync.Map
	changed := pubsub.Subscription{Exchange: pubsub.Exchange{Name: "catalog.changed"}}
	subscriber, err := pubsub.NewLiveSubscriber(conn, changed,
		pubsub.JSON(func(_ context.Context, item string) error {
			cache.Delete(item)
			return nil
		}),
		pubsub.SubscriberConfig{
			OnGap:      func(from, to time.Time) { cache.Clear() },
			OnOverflow: cache.Clear,
		})
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		<-subscriber.Ready() // from here on no change is missed without being told
		log.Print("serving")
	}()
	if err := subscriber.Run(ctx); err != nil {
		log.Print(err)
	}
}

// Where the publisher may come first, it declares the groups that must not miss anything.
func ExampleSubscription_Topology() {
	ctx := context.Background()
	conn, err := reconnect.Dial(ctx, "amqp://guest:guest@localhost:5672/", reconnect.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(ctx)
	orders := pubsub.Exchange{Name: "orders"}
	for _, group := range []string{"billing.orders", "mail.orders"} {
		if err := conn.Declare(ctx, pubsub.Subscription{Exchange: orders, Queue: group}.Topology()); err != nil {
			log.Fatal(err) // it exists with other arguments, or may not be declared
		}
	}
}

// An event that somebody has to hear.
func ExampleExchange() {
	ctx := context.Background()
	conn, err := reconnect.Dial(ctx, "amqp://guest:guest@localhost:5672/", reconnect.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(ctx)
	publisher, err := pubsub.NewPublisher(conn, pubsub.Exchange{Name: "alarms", Mandatory: true}, reconnect.PublisherConfig{})
	if err != nil {
		log.Fatal(err)
	}
	err = publisher.Publish(ctx, amqp.Publishing{Body: []byte("fire")})
	var nobody *reconnect.ReturnedError
	switch {
	case errors.As(err, &nobody):
		fmt.Println("nobody listens")
	case err != nil:
		fmt.Println("not sure that they heard:", err)
	}
}
