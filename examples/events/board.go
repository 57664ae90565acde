package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/routing/topic"
)

// board is who listens, and what they have heard.
type board struct {
	conn     *reconnect.Conn
	exchange topic.Exchange
	out      io.Writer
	queues   []topic.Subscription
	leave    []func() error

	mu      sync.Mutex
	heard   map[string][]string // the keys, by who heard them
	changed chan struct{}       // closed, and made anew, with each of them
}

func newBoard(conn *reconnect.Conn, name string, out io.Writer) *board {
	return &board{conn: conn, exchange: topic.Exchange{Name: name}, out: out, heard: map[string][]string{}, changed: make(chan struct{})}
}

// note is a handler that notes who heard what.
func (b *board) note(who string) topic.Handler {
	return func(_ context.Context, d amqp.Delivery) error {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.heard[who] = append(b.heard[who], d.RoutingKey)
		close(b.changed)
		b.changed = make(chan struct{})
		return nil
	}
}

// listen subscribes a queue of its own, and returns when what is published from then on reaches it.
func (b *board) listen(ctx context.Context, name string, patterns []string, h topic.Handler) error {
	sub := topic.Subscription{Exchange: b.exchange, Queue: b.exchange.Name + " " + name, Patterns: patterns}
	subscriber, err := topic.NewSubscriber(b.conn, sub, h, topic.SubscriberConfig{})
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- subscriber.Run(running) }()
	b.queues = append(b.queues, sub)
	b.leave = append(b.leave, func() error { stop(); return <-ended })
	select {
	case <-subscriber.Ready():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// table publishes every key and shows where it went. It fails when topic.Match says otherwise.
func (b *board) table(ctx context.Context) error {
	publisher, err := topic.NewPublisher(b.conn, b.exchange, reconnect.PublisherConfig{})
	if err != nil {
		return err
	}
	width := longest(keys)
	b.row(width, "", patterns)
	for _, key := range keys {
		wanted := slices.ContainsFunc(patterns, func(pattern string) bool { return topic.Match(pattern, key) })
		var returned *reconnect.ReturnedError
		err := publisher.PublishJSON(ctx, key, map[string]any{"at": time.Now()})
		switch {
		case errors.As(err, &returned) && !wanted:
			b.row(width, key, append(make([]string, len(patterns)), "returned: nobody listens"))
			continue
		case err != nil:
			return err
		case !wanted:
			return fmt.Errorf("the broker found somebody for %q, topic.Match did not", key)
		}
		marks, err := b.marks(ctx, key)
		if err != nil {
			return err
		}
		b.row(width, key, marks)
	}
	return nil
}

// marks waits for a key to be heard where it should be, and returns a mark for each pattern under which it was.
func (b *board) marks(ctx context.Context, key string) ([]string, error) {
	marks := make([]string, len(patterns))
	for _, pattern := range patterns {
		if !topic.Match(pattern, key) {
			continue
		}
		if err := b.await(ctx, pattern, key); err != nil {
			return nil, err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, pattern := range patterns {
		heard := slices.Contains(b.heard[pattern], key)
		if heard != topic.Match(pattern, key) {
			return nil, fmt.Errorf("pattern %q, key %q: the broker says %v, topic.Match does not", pattern, key, heard)
		}
		if heard {
			marks[i] = "x"
		}
	}
	return marks, nil
}

func (b *board) row(width int, key string, cells []string) {
	line := fmt.Sprintf("   %-*s", width, key)
	for i, cell := range cells {
		w := len(cell)
		if i < len(patterns) {
			w = len(patterns[i])
		}
		line += fmt.Sprintf("   %-*s", w, cell)
	}
	fmt.Fprintln(b.out, strings.TrimRight(line, " "))
}

// sorted publishes every key again, and shows which handler of the mux got it.
func (b *board) sorted(ctx context.Context, mux topic.Mux) error {
	publisher, err := topic.NewPublisher(b.conn, b.exchange, reconnect.PublisherConfig{})
	if err != nil {
		return err
	}
	for _, key := range keys {
		if err := publisher.PublishJSON(ctx, key, map[string]any{"at": time.Now()}); err != nil {
			return err
		}
		pattern, err := b.whose(ctx, mux, key)
		if err != nil {
			return err
		}
		fmt.Fprintf(b.out, "   %-*s --> %s\n", longest(keys), key, pattern)
	}
	return nil
}

// whose waits until a handler of the mux got the key, and returns its pattern.
func (b *board) whose(ctx context.Context, mux topic.Mux, key string) (pattern string, err error) {
	err = b.until(ctx, func() bool {
		for _, p := range mux.Patterns() {
			if slices.Contains(b.heard["mux "+p], key) {
				pattern = p
				return true
			}
		}
		return false
	})
	return pattern, err
}

func (b *board) await(ctx context.Context, who, key string) error {
	if err := b.until(ctx, func() bool { return slices.Contains(b.heard[who], key) }); err != nil {
		return fmt.Errorf("%q did not hear %q: %w", who, key, err)
	}
	return nil
}

// until waits for cond, which may look at what was heard.
func (b *board) until(ctx context.Context, cond func() bool) error {
	for {
		b.mu.Lock()
		done, changed := cond(), b.changed
		b.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func longest(words []string) (n int) {
	for _, w := range words {
		n = max(n, len(w))
	}
	return n
}

// close ends all subscribers and deletes what they had declared.
func (b *board) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var faults []error
	for _, leave := range b.leave {
		faults = append(faults, leave())
	}
	for _, q := range b.queues {
		b.conn.Forget(q.Topology()) // a reconnect must not make it anew
	}
	ch, err := b.conn.Channel(ctx)
	if err != nil {
		return errors.Join(append(faults, err)...)
	}
	defer ch.Close()
	for _, q := range b.queues {
		for _, queue := range []string{q.Queue, q.DeadLetterQueue()} {
			_, err := ch.QueueDelete(queue, false, false, false)
			faults = append(faults, err)
		}
	}
	return errors.Join(append(faults, ch.ExchangeDelete(b.exchange.Name, false, false))...)
}
