// Pricing: a client asks what things cost, and several servers answer.
//
//	go run ./examples/rpc [-calls N]
//
// First two fast servers and a slow one share the calls. Then one joins that fails, and one is killed while it works on a
// call. In the end nobody is left. Each part prints who answered, how long that took, and what the callers were told. The
// broker is the one of AMQP_URL; without that the program starts one of its own, in a container or from the machine's binaries.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/warrenmq/warren/internal/testenv/provide"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/rpc"
)

func main() {
	calls := flag.Int("calls", 200, "how many in each part")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the first Ctrl-C drains, a second one ends the program at once
	if err := run(ctx, *calls); err != nil {
		fmt.Fprintln(os.Stderr, "rpc:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, calls int) (err error) {
	broker, err := provide.StartNode(ctx)
	if err != nil {
		return fmt.Errorf("no broker (make setup provides one): %w", err)
	}
	defer func() { err = errors.Join(err, broker.Remove()) }()
	fmt.Printf("RabbitMQ %s (%s): prices, %d calls in each part\n", broker.Version, broker.Kind, calls)
	_, err = play(ctx, os.Stdout, broker.URL, calls)
	return err
}

// key is what a quote is asked under.
const key = "pricing.quote"

// play tells all parts. What it declares is its own, and goes with it.
func play(ctx context.Context, out io.Writer, url string, calls int) (r results, err error) {
	conn, err := reconnect.Dial(ctx, url, reconnect.Config{Name: "example-rpc-client"})
	if err != nil {
		return r, err
	}
	defer conn.Close(context.Background())
	id := uuid.NewString()[:8]
	c := &company{url: url, out: out, queue: "pricing." + id, cfg: rpc.ServerConfig{
		Exchange: "pricing.exchange." + id, Keys: []string{key},
		ErrorCode: func(err error) string {
			if errors.Is(err, errSoldOut) {
				return "sold-out"
			}
			return "" // as it is
		},
	}}
	defer func() { err = errors.Join(err, c.close(conn)) }()
	client, err := rpc.NewClient(conn, rpc.ClientConfig{Exchange: c.cfg.Exchange, Timeout: 5 * time.Second})
	if err != nil {
		return r, err
	}
	fmt.Fprintln(out, "\nnobody is there yet:")
	r.nobody = c.ask(ctx, client)

	for name, takes := range map[string]time.Duration{"fast-1": 0, "fast-2": 0, "slow": 100 * time.Millisecond} {
		if err := c.start(ctx, name, answer(name, takes)); err != nil {
			return r, err
		}
	}
	c.settle(ctx, client)
	fmt.Fprintln(out, "\ntwo fast servers and a slow one:")
	r.shared = c.askMany(ctx, client, calls)

	if err := c.start(ctx, "failing", fail); err != nil {
		return r, err
	}
	fmt.Fprintln(out, "\none that fails joins them:")
	r.failing = c.askMany(ctx, client, calls)

	fmt.Fprintln(out, "\none is killed while it works on a call; another one is there:")
	if r.killed, err = c.killOne(ctx, client); err != nil {
		return r, err
	}
	fmt.Fprintln(out, "\nthe same, and the caller has said that a quote may be worked out twice:")
	if r.repeated, err = c.killOne(ctx, client.Idempotent()); err != nil {
		return r, err
	}
	if err := c.stopAll(); err != nil {
		return r, err
	}
	fmt.Fprintln(out, "\nall have stopped, and the caller waits for half a second:")
	hurry, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	r.late = c.ask(hurry, client)
	return r, nil
}
