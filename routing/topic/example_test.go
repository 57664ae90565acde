package topic_test

import (
	"context"
	"fmt"
	"log"
	"os/signal"
	"syscall"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/routing/topic"
)

// Order is the payload of the examples.
type Order struct{ ID int64 }

func onCreated(ctx context.Context, o Order) error   { return ctx.Err() }
func onCancelled(ctx context.Context, o Order) error { return ctx.Err() }

// The whole pattern: one queue with a handler for each pattern.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	conn, err := reconnect.Dial(ctx, "amqp://guest:guest@localhost:5672/", reconnect.Config{Name: "audit"})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(context.Background())

	events := topic.Exchange{Name: "events"}
	mux := topic.Mux{"order.created.*": topic.JSON(onCreated), "order.cancelled.#": topic.JSON(onCancelled)}
	audit := topic.Subscription{Exchange: events, Queue: "audit.orders", Patterns: mux.Patterns(), Obsolete: []string{"order.*"}}
	subscriber, err := topic.NewSubscriber(conn, audit, mux.Handle, topic.SubscriberConfig{})
	if err != nil {
		log.Fatal(err)
	}

	publisher, err := topic.NewPublisher(conn, events, reconnect.PublisherConfig{})
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		<-subscriber.Ready()
		if err := publisher.PublishJSON(ctx, "order.created.eu", Order{ID: 42}); err != nil {
			log.Print(err)
		}
	}()
	if err := subscriber.Run(ctx); err != nil { // until Ctrl-C, then until what was begun is done
		log.Print(err)
	}
}

// This instance, from now on: what a screen shows of everything that happens in Europe.
func ExampleNewLiveSubscriber() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	conn, err := reconnect.Dial(ctx, "amqp://guest:guest@localhost:5672/", reconnect.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(context.Background())
	europe := topic.Subscription{Exchange: topic.Exchange{Name: "events"}, Patterns: []string{"*.*.eu"}}
	screen, err := topic.NewLiveSubscriber(conn, europe, func(_ context.Context, d amqp.Delivery) error {
		fmt.Println(d.RoutingKey)
		return nil
	}, topic.SubscriberConfig{})
	if err != nil {
		log.Fatal(err)
	}
	if err := screen.Run(ctx); err != nil {
		log.Print(err)
	}
}

func ExampleMatch() {
	for _, pattern := range []string{"order.#", "*.*.eu", "payment.failed.#"} {
		fmt.Println(pattern, topic.Match(pattern, "order.cancelled.eu"))
	}
	// Output:
	// order.# true
	// *.*.eu true
	// payment.failed.# false
}

// The most specific pattern wins.
func ExampleMux() {
	say := func(what string) topic.Handler {
		return func(_ context.Context, d amqp.Delivery) error {
			fmt.Println(d.RoutingKey, "is", what)
			return nil
		}
	}
	mux := topic.Mux{"order.created.*": say("new"), "order.#": say("an order"), "#": say("something")}
	for _, key := range []string{"order.created.eu", "order.paid", "refund.issued"} {
		_ = mux.Handle(context.Background(), amqp.Delivery{RoutingKey: key})
	}
	// Output:
	// order.created.eu is new
	// order.paid is an order
	// refund.issued is something
}
