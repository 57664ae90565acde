package direct_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os/signal"
	"syscall"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/routing/direct"
)

// Order is the payload of the examples.
type Order struct{ ID int64 }

func onCreated(ctx context.Context, o Order) error   { return ctx.Err() }
func onCancelled(ctx context.Context, o Order) error { return ctx.Err() }

// The whole pattern: audit wants two kinds of events, each with a handler of its own.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	conn, err := reconnect.Dial(ctx, "amqp://guest:guest@localhost:5672/", reconnect.Config{Name: "audit"})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(context.Background())

	orders := direct.Exchange{Name: "orders"}
	mux := direct.Mux{"order.created": direct.JSON(onCreated), "order.cancelled": direct.JSON(onCancelled)}
	audit := direct.Subscription{Exchange: orders, Queue: "audit", Keys: mux.Keys()}
	subscriber, err := direct.NewSubscriber(conn, audit, mux.Handle, direct.SubscriberConfig{})
	if err != nil {
		log.Fatal(err)
	}

	publisher, err := direct.NewPublisher(conn, orders, reconnect.PublisherConfig{})
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		<-subscriber.Ready()
		if err := publisher.PublishJSON(ctx, "order.created", Order{ID: 42}); err != nil {
			log.Print(err)
		}
	}()
	if err := subscriber.Run(ctx); err != nil { // until Ctrl-C, then until what was begun is done
		log.Print(err)
	}
}

// A key that no queue is bound with is an error of its publish.
func ExamplePublisher_Publish() {
	ctx := context.Background()
	conn, err := reconnect.Dial(ctx, "amqp://guest:guest@localhost:5672/", reconnect.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(ctx)
	publisher, err := direct.NewPublisher(conn, direct.Exchange{Name: "orders"}, reconnect.PublisherConfig{})
	if err != nil {
		log.Fatal(err)
	}
	err = publisher.Publish(ctx, "order.creatd", amqp.Publishing{})
	var returned *reconnect.ReturnedError
	if errors.As(err, &returned) {
		fmt.Printf("nobody wants %q\n", returned.Key)
	}
}

// What no queue is bound with goes to another exchange; whoever subscribes there gets all of it.
func ExampleExchange() {
	orders := direct.Exchange{Name: "orders", Alternate: "orders.unclaimed"}
	fmt.Println(orders.Topology().Exchanges[0].Alternate)
	// Output: orders.unclaimed
}

// A new version no longer wants a key that an earlier one had bound.
func ExampleSubscription() {
	audit := direct.Subscription{
		Exchange: direct.Exchange{Name: "orders"},
		Queue:    "audit",
		Keys:     []string{"order.created", "order.cancelled"},
		Obsolete: []string{"order.viewed"}, // may stay here for ever
	}
	for _, b := range audit.Topology().Obsolete {
		fmt.Println("unbound:", b.Key)
	}
	// Output: unbound: order.viewed
}

// A handler needs no broker to be tried.
func ExampleMux() {
	mux := direct.Mux{"order.created": direct.JSON(func(_ context.Context, o Order) error {
		fmt.Println("created", o.ID)
		return nil
	})}
	_ = mux.Handle(context.Background(), amqp.Delivery{RoutingKey: "order.created", Body: []byte(`{"ID":42}`)})
	fmt.Println(mux.Handle(context.Background(), amqp.Delivery{RoutingKey: "order.lost", MessageId: "m-1"}))
	// Output:
	// created 42
	// direct: message "m-1": no handler for key "order.lost"
}
