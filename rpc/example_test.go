package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os/signal"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/rpc"
)

type Quote struct{ SKU string }

type Price struct{ Cents int }

var errUnknownSKU = errors.New("no such article")

func lookUp(ctx context.Context, q Quote) (Price, error) {
	if q.SKU == "" {
		return Price{}, errUnknownSKU
	}
	return Price{Cents: 1999}, ctx.Err()
}

// The whole pattern in one program: a server, and a call to it. Any number of servers share the queue.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	conn, err := reconnect.Dial(ctx, "amqp://guest:guest@localhost:5672/", reconnect.Config{Name: "pricing"})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(context.Background())

	server, err := rpc.NewServer(conn, "pricing", rpc.JSON(lookUp), rpc.ServerConfig{Concurrency: 8})
	if err != nil {
		log.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Run(ctx) }() // until Ctrl-C, then until what was begun is answered

	client, err := rpc.NewClient(conn, rpc.ClientConfig{})
	if err != nil {
		log.Fatal(err)
	}
	<-server.Ready()
	price, err := rpc.Call[Price](ctx, client, "pricing", Quote{SKU: "A7"})
	if err != nil {
		log.Print(err)
	}
	fmt.Println(price.Cents)
	stop()
	if err := <-served; err != nil {
		log.Print(err)
	}
}

// What the error of a call says.
func ExampleCall() {
	var conn *reconnect.Conn // of reconnect.Dial
	client, err := rpc.NewClient(conn, rpc.ClientConfig{})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	price, err := rpc.Call[Price](ctx, client, "pricing", Quote{SKU: "A7"})
	var remote *rpc.RemoteError
	switch {
	case err == nil:
		fmt.Println(price.Cents)
	case errors.Is(err, rpc.ErrNoServer): // nobody there, known at once
	case errors.As(err, &remote) && remote.Code == "unknown-sku": // the server says so
	case errors.Is(err, context.DeadlineExceeded): // too slow
	case errors.Is(err, reconnect.ErrUnknown): // the link or the server was lost: may have been executed
	default: // never sent
	}
}

// A call that does no harm when it is executed twice is sent again after a loss.
func ExampleClient_Idempotent() {
	var conn *reconnect.Conn // of reconnect.Dial
	client, err := rpc.NewClient(conn, rpc.ClientConfig{})
	if err != nil {
		log.Fatal(err)
	}
	reads := client.Idempotent().WithHeaders(amqp.Table{"tenant": "acme"})
	if _, err := rpc.Call[Price](context.Background(), reads, "pricing", Quote{SKU: "A7"}); err != nil {
		log.Print(err)
	}
}

// The raw form: bodies of any kind, by exchange and key.
func ExampleClient_Call() {
	var conn *reconnect.Conn // of reconnect.Dial
	client, err := rpc.NewClient(conn, rpc.ClientConfig{Exchange: "pricing.exchange", Timeout: 5 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	reply, err := client.Call(context.Background(), "pricing.quote", amqp.Publishing{Type: "quote.v1", Body: []byte("A7")})
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Printf("%s: %s\n", reply.Type, reply.Body)
}

// A server of an exchange, which names its errors for callers.
func ExampleNewServer() {
	var conn *reconnect.Conn // of reconnect.Dial
	server, err := rpc.NewServer(conn, "pricing", rpc.JSON(lookUp), rpc.ServerConfig{
		Exchange: "pricing.exchange", Keys: []string{"pricing.quote"},
		Concurrency: 8,
		MaxLength:   1000, // a call more is refused, which is better than one that waits for its deadline
		ErrorCode: func(err error) string {
			if errors.Is(err, errUnknownSKU) {
				return "unknown-sku"
			}
			return "error"
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := server.Run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

// Middleware is a function around a Handler.
func ExampleHandler() {
	logged := func(h rpc.Handler) rpc.Handler {
		return func(ctx context.Context, d amqp.Delivery) (amqp.Publishing, error) {
			began := time.Now()
			reply, err := h(ctx, d)
			slog.InfoContext(ctx, "handled", "message", d.MessageId, "took", time.Since(began), "error", err)
			return reply, err
		}
	}
	handler := logged(rpc.JSON(lookUp))
	reply, err := handler(context.Background(), amqp.Delivery{Body: []byte(`{"SKU":"A7"}`)}) // a test without a broker
	fmt.Println(string(reply.Body), err)
	// Output: {"Cents":1999} <nil>
}
