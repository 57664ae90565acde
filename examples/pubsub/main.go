// Prices: several instances of a service keep prices in memory, and tell each other when one has changed.
//
//	go run ./examples/pubsub
//
// Each has a live subscription to the event cache.invalidation. One joins late, and one is cut off: it misses an event,
// would go on to show an old price for ever, is told of the gap when it is back, and clears its cache. The broker is the
// one of AMQP_URL; without that the program starts one of its own, in a container or from the machine's binaries.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/warrenmq/warren/internal/testenv/provide"
	"github.com/warrenmq/warren/pubsub"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "pubsub:", err)
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
	// The exchange is this run's own, on a broker that others use too, and goes with it.
	return story(ctx, broker.URL, pubsub.Exchange{Name: "cache.invalidation." + uuid.NewString()[:8]}, os.Stdout)
}

// limit is how long the story may take; it needs about three seconds.
const limit = time.Minute

// story tells what happens to the caches. It fails when one of them shows an old price in the end.
func story(ctx context.Context, url string, event pubsub.Exchange, out io.Writer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	s := &shop{url: url, event: event, out: out, prices: newPrices(map[string]int{"tea": 5, "cake": 7})}
	defer func() { err = errors.Join(err, s.close()) }()

	s.say("Two instances start, and read all prices into their caches.")
	north, err := s.open(ctx, "north")
	if err != nil {
		return err
	}
	south, err := s.open(ctx, "south")
	if err != nil {
		return err
	}
	s.show()

	s.say("\nNorth changes the price of tea to 6 and says so. Everybody forgets the old one, and reads the new one.")
	if err := s.change(ctx, north, "tea", 6); err != nil {
		return err
	}

	s.say("\nA third instance joins late. What was before it reads from the database, what comes now it is told.")
	if _, err := s.open(ctx, "late"); err != nil {
		return err
	}
	if err := s.change(ctx, south, "cake", 8); err != nil {
		return err
	}

	s.say("\nSouth is cut off. Meanwhile tea goes up to 9: the others know, South shows the old price.")
	south.network.cut()
	if err := s.change(ctx, north, "tea", 9); err != nil {
		return err
	}
	if south.price("tea") != 6 {
		return errors.New("south knows what it cannot know")
	}

	s.say("\nSouth is back. It cannot know what it has missed, but it is told that and when it may have, and clears its cache.")
	south.network.mend()
	if err := south.until(ctx, func() bool { return south.gaps() > 0 }); err != nil {
		return fmt.Errorf("south was told of no gap: %w", err)
	}
	s.show()
	return s.check()
}
