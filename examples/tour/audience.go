package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
)

// audience is who listens in the chapters on exchanges, and what each has heard.
type audience struct {
	conn  *reconnect.Conn
	leave []func() error
	clean []reconnect.Topology // to be deleted in the end

	mu      sync.Mutex
	heard   map[string][]amqp.Delivery // by listener
	changed chan struct{}              // closed, and made anew, with each message
}

// listener is what all subscribers have in common.
type listener interface {
	Run(ctx context.Context) error
	Ready() <-chan struct{}
}

// topologist is what describes itself: a subscription or an exchange.
type topologist interface{ Topology() reconnect.Topology }

func newAudience(conn *reconnect.Conn) *audience {
	return &audience{conn: conn, heard: map[string][]amqp.Delivery{}, changed: make(chan struct{})}
}

// note is a handler that notes what a listener hears.
func (a *audience) note(who string) func(context.Context, amqp.Delivery) error {
	return func(_ context.Context, d amqp.Delivery) error {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.heard[who] = append(a.heard[who], d)
		close(a.changed)
		a.changed = make(chan struct{})
		return nil
	}
}

// add runs a subscriber, and returns when what is published from then on reaches it. leave ends it.
func (a *audience) add(ctx context.Context, sub topologist, l listener, err error) (leave func() error, _ error) {
	if err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- l.Run(running) }()
	leave = sync.OnceValue(func() error { stop(); return <-ended })
	a.leave = append(a.leave, leave)
	a.clean = append(a.clean, sub.Topology())
	select {
	case <-l.Ready():
		return leave, nil
	case err := <-ended:
		ended <- nil
		return nil, errors.Join(errors.New("a subscriber ended"), err)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// keys are the routing keys that a listener heard, in order.
func (a *audience) keys(who string) (keys []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, d := range a.heard[who] {
		keys = append(keys, d.RoutingKey)
	}
	return keys
}

// count is how many messages the listeners heard, and distinct how many different ones.
func (a *audience) count(who ...string) (count, distinct int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	seen := map[string]bool{}
	for _, w := range who {
		for _, d := range a.heard[w] {
			seen[d.MessageId] = true
			count++
		}
	}
	return count, len(seen)
}

// await waits until the listeners have heard so many different messages.
func (a *audience) await(ctx context.Context, n int, who ...string) error {
	for {
		a.mu.Lock()
		changed := a.changed
		a.mu.Unlock()
		_, distinct := a.count(who...)
		if distinct >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%v heard %d of %d messages: %w", who, distinct, n, ctx.Err())
		}
	}
}

// close ends all subscribers and deletes what was declared, also after an error.
func (a *audience) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var faults []error
	for _, leave := range a.leave {
		faults = append(faults, leave())
	}
	for _, t := range a.clean {
		a.conn.Forget(t) // a reconnect must not make it anew
	}
	ch, err := a.conn.Channel(ctx)
	if err != nil {
		return errors.Join(append(faults, err)...)
	}
	defer ch.Close()
	for _, t := range a.clean {
		for _, q := range t.Queues {
			_, err := ch.QueueDelete(q.Name, false, false, false)
			faults = append(faults, err)
		}
		for _, e := range t.Exchanges {
			faults = append(faults, ch.ExchangeDelete(e.Name, false, false))
		}
	}
	return errors.Join(faults...)
}
