package reconnect_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os/signal"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
)

// The whole of it: connect, declare, publish with a confirmation, close.
func Example() {
	ctx := context.Background()
	conn, err := reconnect.Dial(ctx, "amqp://guest:guest@localhost:5672/", reconnect.Config{Name: "billing"})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(ctx)

	err = conn.Declare(ctx, reconnect.Topology{Queues: []reconnect.Queue{{Name: "invoices"}}})
	if err != nil {
		log.Print(err)
		return
	}
	publisher, err := conn.NewPublisher(reconnect.PublisherConfig{})
	if err != nil {
		log.Print(err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	err = publisher.Publish(ctx, "", "invoices", amqp.Publishing{ContentType: "text/plain", Body: []byte("42.00 EUR")})
	var returned *reconnect.ReturnedError
	switch {
	case err == nil:
		fmt.Println("the broker has it safely")
	case errors.As(err, &returned):
		fmt.Println("no queue took it:", returned.Text)
	case errors.Is(err, reconnect.ErrUnknown):
		fmt.Println("it may have arrived:", err)
	default:
		fmt.Println("it was not sent:", err)
	}
}

// Dial waits for a broker that is not there yet, for as long as its context lives.
func ExampleDial() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := reconnect.Dial(ctx, "amqp://guest:guest@rabbit-1/", reconnect.Config{
		Name:      "billing",
		Hosts:     []string{"rabbit-2", "rabbit-3:5673"},
		Heartbeat: 5 * time.Second, // a dead link is noticed within 15 s
		OnState:   func(s reconnect.State) { fmt.Println(s.Name, s.Phase, s.Reason) },
	})
	if err != nil {
		log.Fatal(err) // wrong credentials, a wrong virtual host or certificate; or no broker within a minute
	}
	defer conn.Close(context.Background())
}

// Credentials are asked for at each dial, and before they expire.
func ExampleDial_credentials() {
	fetchToken := func(context.Context) (token string, expires time.Time, err error) {
		return "…", time.Now().Add(time.Hour), nil // from your identity provider
	}
	conn, err := reconnect.Dial(context.Background(), "amqp://localhost:5672/", reconnect.Config{
		Credentials: func(ctx context.Context) (amqp.Authentication, time.Time, error) {
			token, expires, err := fetchToken(ctx)
			if err != nil {
				return nil, time.Time{}, err
			}
			return &amqp.PlainAuth{Username: "", Password: token}, expires, nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(context.Background())
}

// A topology is data; declaring it again changes nothing.
func ExampleConn_Declare() {
	ctx := context.Background()
	conn, err := reconnect.Dial(ctx, "amqp://guest:guest@localhost:5672/", reconnect.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(ctx)
	err = conn.Declare(ctx, reconnect.Topology{
		Exchanges: []reconnect.Exchange{
			{Name: "orders", Kind: "topic"},
			{Name: "operators", Declare: reconnect.Passive}, // must be there already
		},
		Queues: []reconnect.Queue{
			{Name: "audit", Arguments: amqp.Table{"x-max-length": 100_000}}, // quorum
			{Name: "cache", Exclusive: true},                                // gone with the connection, and back with the next
		},
		Bindings: []reconnect.Binding{
			{Exchange: "orders", Key: "#", Queue: "audit"},
			{Exchange: "orders", Key: "order.changed", Queue: "cache"},
		},
		Obsolete: []reconnect.Binding{{Exchange: "orders", Key: "order.*", Queue: "audit"}}, // of an earlier version
	})
	var fault *reconnect.TopologyError
	if errors.As(err, &fault) {
		log.Printf("%s is there with %s = %s, not %s", fault.Entity, fault.Argument, fault.Existing, fault.Wanted)
	}
}

// A consumer of one's own: the function runs again, with a fresh channel, after each loss.
func ExampleConn_Supervise() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	conn, err := reconnect.Dial(ctx, "amqp://guest:guest@localhost:5672/", reconnect.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(context.Background())

	topology := reconnect.Topology{Queues: []reconnect.Queue{{Name: "invoices"}}}
	err = conn.Supervise(ctx, "invoices", topology, func(ctx context.Context, ch *amqp.Channel) error {
		if err := ch.Qos(10, 0, false); err != nil {
			return err
		}
		deliveries, err := ch.Consume("invoices", "", false, false, false, false, nil)
		if err != nil {
			return err
		}
		for {
			select {
			case d, ok := <-deliveries:
				if !ok {
					return nil // the channel is lost, or the broker has cancelled the consumer
				}
				fmt.Printf("%s\n", d.Body)
				if err := d.Ack(false); err != nil {
					return err
				}
			case <-ctx.Done():
				return nil
			}
		}
	})
	if err != nil {
		log.Print(err) // a fault of the topology; nil when ctx has ended
	}
}

// A batch is pipelined and keeps its order; each message has an outcome of its own.
func ExamplePublisher_PublishBatch() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := reconnect.Dial(ctx, "amqp://guest:guest@localhost:5672/", reconnect.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(context.Background())
	publisher, err := conn.NewPublisher(reconnect.PublisherConfig{})
	if err != nil {
		log.Print(err)
		return
	}
	var batch []reconnect.Message
	for i := range 1000 {
		body := fmt.Appendf(nil, "event %d", i)
		batch = append(batch, reconnect.Message{Exchange: "events", Key: "created", Publishing: amqp.Publishing{Body: body}})
	}
	var failed reconnect.BatchError
	if err := publisher.PublishBatch(ctx, batch); errors.As(err, &failed) {
		for i, err := range failed {
			if err != nil {
				log.Printf("message %d: %v", i, err)
			}
		}
	} else if err != nil {
		log.Print(err)
	}
}

// A health endpoint: ready when every link in use answers and every supervised function has a channel.
func ExampleConn_Ping() {
	conn, err := reconnect.Dial(context.Background(), "amqp://guest:guest@localhost:5672/", reconnect.Config{Lazy: true})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(context.Background())
	http.HandleFunc("/ready", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		if err := conn.Ping(ctx); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		for _, s := range conn.State() {
			fmt.Fprintf(w, "%s: %s since %s\n", s.Name, s.Phase, s.Since.Format(time.RFC3339))
		}
	})
}
