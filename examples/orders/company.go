package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/routing/direct"
)

// order is the message.
type order struct{ ID int }

// company is the services, and who got what.
type company struct {
	conn     *reconnect.Conn
	exchange direct.Exchange
	out      io.Writer
	services map[string]*service

	mu      sync.Mutex // of all below, and out
	orders  map[string][]string
	changed chan struct{} // closed, and made anew, with each order
}

// service is one that runs.
type service struct {
	subscription direct.Subscription
	leave        context.CancelFunc
	workers      int
	ended        chan error
}

func newCompany(conn *reconnect.Conn, name string, out io.Writer) *company {
	return &company{conn: conn, exchange: direct.Exchange{Name: name}, out: out, services: map[string]*service{},
		orders: map[string][]string{}, changed: make(chan struct{})}
}

func (c *company) say(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintf(c.out, format+"\n", args...)
}

// hire starts the workers of a service, and returns when what is sent from then on reaches it.
func (c *company) hire(ctx context.Context, name string, workers int, keys, obsolete []string) error {
	mux := direct.Mux{} // a handler for each key; here all of them do the same
	for _, key := range keys {
		mux[key] = direct.JSON(func(_ context.Context, o order) error { c.book(name, key, o); return nil })
	}
	running, leave := context.WithCancel(context.WithoutCancel(ctx))
	s := &service{leave: leave, ended: make(chan error, workers), subscription: direct.Subscription{
		Exchange: c.exchange, Queue: c.exchange.Name + "." + name, Keys: mux.Keys(), Obsolete: obsolete}}
	c.services[name] = s
	for range workers {
		subscriber, err := direct.NewSubscriber(c.conn, s.subscription, mux.Handle, direct.SubscriberConfig{})
		if err != nil {
			return err
		}
		s.workers++
		go func() { s.ended <- subscriber.Run(running) }()
		select {
		case <-subscriber.Ready():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// send publishes an order by its key, and waits until all who asked for that have it.
func (c *company) send(ctx context.Context, key string, id int) error {
	publisher, err := direct.NewPublisher(c.conn, c.exchange, reconnect.PublisherConfig{})
	if err != nil {
		return err
	}
	if err := publisher.PublishJSON(ctx, key, order{ID: id}); err != nil {
		return err
	}
	for name, s := range c.services {
		if slices.Contains(s.subscription.Keys, key) {
			if err := c.await(ctx, name, label(key, order{id})); err != nil {
				return err
			}
		}
	}
	return nil
}

func label(key string, o order) string { return fmt.Sprintf("%s %d", key, o.ID) }

func (c *company) book(service, key string, o order) {
	c.say("   %-22s --> %s", label(key, o), service)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.orders[service] = append(c.orders[service], label(key, o))
	close(c.changed)
	c.changed = make(chan struct{})
}

// got returns what a service got, sorted: two workers may finish in any order.
func (c *company) got(service string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(slices.Values(c.orders[service]))
}

func (c *company) await(ctx context.Context, service, label string) error {
	for {
		c.mu.Lock()
		done, changed := slices.Contains(c.orders[service], label), c.changed
		c.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%s did not get %s: %w", service, label, ctx.Err())
		}
	}
}

// dismiss ends a service. Its queue and bindings stay.
func (c *company) dismiss(name string) error {
	s := c.services[name]
	s.leave()
	var faults []error
	for range s.workers {
		faults = append(faults, <-s.ended)
	}
	s.workers = 0
	c.conn.Forget(s.subscription.Topology())
	return errors.Join(faults...)
}

// close ends all services and deletes what they had declared.
func (c *company) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var faults []error
	for name := range c.services {
		faults = append(faults, c.dismiss(name))
	}
	c.conn.Forget(c.exchange.Topology()) // a reconnect must not make it anew
	ch, err := c.conn.Channel(ctx)
	if err != nil {
		return errors.Join(append(faults, err)...)
	}
	defer ch.Close()
	for _, s := range c.services {
		for _, queue := range []string{s.subscription.Queue, s.subscription.DeadLetterQueue()} {
			_, err := ch.QueueDelete(queue, false, false, false)
			faults = append(faults, err)
		}
	}
	return errors.Join(append(faults, ch.ExchangeDelete(c.exchange.Name, false, false))...)
}
