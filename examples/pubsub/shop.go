package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/warrenmq/warren/pubsub"
	"github.com/warrenmq/warren/reconnect"
)

// prices are what a database would hold.
type prices struct {
	mu   sync.Mutex
	rows map[string]int
}

func newPrices(rows map[string]int) *prices { return &prices{rows: rows} }

func (p *prices) get(item string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rows[item]
}

func (p *prices) set(item string, price int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rows[item] = price
}

func (p *prices) items() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.rows))
}

// shop is the service, with its database and instances.
type shop struct {
	url       string
	event     pubsub.Exchange
	prices    *prices
	instances []*instance

	mu  sync.Mutex // of out
	out io.Writer
}

func (s *shop) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, format+"\n", args...)
}

// open starts an instance, and returns when it hears what is said.
func (s *shop) open(ctx context.Context, name string) (*instance, error) {
	i := &instance{name: name, shop: s, network: new(network), cache: map[string]int{}, ended: make(chan error, 1)}
	var err error
	i.conn, err = reconnect.Dial(ctx, s.url, reconnect.Config{
		Name:        "example-pubsub-" + name,
		DialContext: i.network.dial,
		BackoffMax:  250 * time.Millisecond,        // somebody watches
		Logger:      slog.New(slog.DiscardHandler), // the story tells it
	})
	if err != nil {
		return nil, err
	}
	s.instances = append(s.instances, i)
	if err := i.start(ctx); err != nil {
		return nil, err
	}
	for _, item := range s.prices.items() {
		i.price(item)
	}
	return i, nil
}

// change sets a price, has the instance announce it, and waits until those that are connected know it.
func (s *shop) change(ctx context.Context, by *instance, item string, price int) error {
	s.prices.set(item, price)
	if err := by.publisher.PublishJSON(ctx, change{Item: item}); err != nil {
		return err
	}
	for _, i := range s.instances {
		if i.network.isCut() {
			continue
		}
		if err := i.until(ctx, func() bool { return i.price(item) == price }); err != nil {
			return fmt.Errorf("%s does not hear that %s has changed: %w", i.name, item, err)
		}
	}
	s.show()
	return nil
}

// show prints what each instance would tell a customer.
func (s *shop) show() {
	for _, i := range s.instances {
		line := fmt.Sprintf("   %-6s", i.name)
		for _, item := range s.prices.items() {
			mark := ""
			if i.price(item) != s.prices.get(item) {
				mark = " (old!)"
			}
			line += fmt.Sprintf("  %s %d%s", item, i.price(item), mark)
		}
		s.say("%s", line)
	}
}

// check compares all caches with the database.
func (s *shop) check() error {
	var faults []error
	for _, i := range s.instances {
		for _, item := range s.prices.items() {
			if got, want := i.price(item), s.prices.get(item); got != want {
				faults = append(faults, fmt.Errorf("%s shows %d for %s, which costs %d", i.name, got, item, want))
			}
		}
	}
	if len(faults) == 0 {
		s.say("\nAll of them show what things cost.")
	}
	return errors.Join(faults...)
}

// close ends the instances, and takes the exchange away. Their queues have gone with them.
func (s *shop) close() error {
	var faults []error
	for n, i := range s.instances {
		faults = append(faults, i.stop(n == len(s.instances)-1))
	}
	return errors.Join(faults...)
}
