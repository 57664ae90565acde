// Orders: what happens to an order goes, by its exact routing key, to the services that asked for it.
//
//	go run ./examples/orders
//
// order.created goes to fulfillment and audit, order.cancelled to audit only, order.payment-failed to alerts only. A key
// that nobody asked for is told to its publisher. A new version of a service takes back what an earlier one had asked for.
// The broker is the one of AMQP_URL; without that the program starts one of its own, in a container or from the machine's
// binaries.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/warrenmq/warren/internal/testenv/provide"
	"github.com/warrenmq/warren/reconnect"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "orders:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	broker, err := provide.StartNode(ctx)
	if err != nil {
		return fmt.Errorf("no broker (make setup provides one): %w", err)
	}
	defer func() { err = errors.Join(err, broker.Remove()) }()
	fmt.Printf("RabbitMQ %s (%s)\n", broker.Version, broker.Kind)
	conn, err := reconnect.Dial(ctx, broker.URL, reconnect.Config{Name: "example-orders"})
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	// Everything is this run's own, on a broker that others use too, and goes with it.
	return story(ctx, conn, "orders."+uuid.NewString()[:8], os.Stdout)
}

// limit is how long the story may take; it needs about two seconds.
const limit = time.Minute

func story(ctx context.Context, conn *reconnect.Conn, name string, out io.Writer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c := newCompany(conn, name, out)
	defer func() { err = errors.Join(err, c.close()) }()

	c.say("Last year's audit wanted to know of every order that was looked at:")
	if err := c.hire(ctx, "audit", 1, []string{"order.created", "order.cancelled", "order.viewed"}, nil); err != nil {
		return err
	}
	if err := c.send(ctx, "order.viewed", 1); err != nil {
		return err
	}
	if err := c.dismiss("audit"); err != nil {
		return err
	}

	c.say("\nThis year's does not, and says so; alerts and fulfillment, which has two workers, come along:")
	for _, s := range []struct {
		service        string
		workers        int
		keys, obsolete []string
	}{
		{"fulfillment", 2, []string{"order.created"}, nil},
		{"audit", 1, []string{"order.created", "order.cancelled"}, []string{"order.viewed"}},
		{"alerts", 1, []string{"order.payment-failed"}, nil},
	} {
		if err := c.hire(ctx, s.service, s.workers, s.keys, s.obsolete); err != nil {
			return err
		}
	}
	for i, key := range []string{"order.created", "order.created", "order.cancelled", "order.payment-failed"} {
		if err := c.send(ctx, key, 2+i); err != nil {
			return err
		}
	}

	c.say("\nA key that nobody asked for comes back to its publisher, as an error; so does one with a typing error:")
	for _, key := range []string{"order.viewed", "order.creatd"} {
		var returned *reconnect.ReturnedError
		if err := c.send(ctx, key, 9); !errors.As(err, &returned) {
			return fmt.Errorf("%s: wanted a ReturnedError, not %v", key, err)
		}
		c.say("   %-22s returned", key)
	}
	return c.check(map[string][]string{
		"fulfillment": {"order.created 2", "order.created 3"},
		"audit":       {"order.cancelled 4", "order.created 2", "order.created 3", "order.viewed 1"},
		"alerts":      {"order.payment-failed 5"},
	})
}

// check compares who got what with who should have.
func (c *company) check(want map[string][]string) error {
	for service, orders := range want {
		if got := c.got(service); !slices.Equal(got, orders) {
			return fmt.Errorf("%s got %v, wanted %v", service, got, orders)
		}
	}
	c.say("\nEverybody got what they asked for, once.")
	return nil
}
