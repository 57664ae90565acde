package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/routing/consistenthash"
)

// noEntry is the number of no entry.
const noEntry = -1

// book is where the entries of accounts are booked. One counts once, however often it comes.
type book struct {
	mu       sync.Mutex
	last     map[string]int // number of the last entry of an account
	count    int
	disorder int
	failed   int
	now, top int           // entries being booked
	changed  chan struct{} // closed, and made anew, with each entry
}

func newBook() *book { return &book{last: map[string]int{}, changed: make(chan struct{})} }

var errEntry = errors.New("the entry does not add up")

// handler returns a handler that needs some time for an entry, and fails with entries of number bad.
func (b *book) handler(takes time.Duration, bad int) consistenthash.Handler {
	return func(ctx context.Context, d amqp.Delivery) error {
		n, err := strconv.Atoi(string(d.Body))
		if err != nil {
			return err
		}
		b.begin(1)
		defer b.begin(-1)
		if pause(ctx, takes); ctx.Err() != nil {
			return ctx.Err()
		}
		if n == bad {
			b.mu.Lock()
			b.failed++
			b.mu.Unlock()
			return fmt.Errorf("%s: %w", d.RoutingKey, errEntry)
		}
		b.enter(d.RoutingKey, n)
		return nil
	}
}

func (b *book) begin(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now += n
	b.top = max(b.top, b.now)
}

func (b *book) enter(account string, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	last, known := b.last[account]
	switch {
	case known && n == last:
		return // once more, because its acknowledgement was cut off
	case known && n < last, !known && n > 0:
		b.disorder++
	}
	b.last[account] = n
	b.count++
	close(b.changed)
	b.changed = make(chan struct{})
}

// wait blocks until so many entries are booked.
func (b *book) wait(ctx context.Context, entries int) error {
	for {
		b.mu.Lock()
		count, changed := b.count, b.changed
		b.mu.Unlock()
		if count >= entries {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d entries: %w", count, entries, context.Cause(ctx))
		}
	}
}

func (b *book) get(of *int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return *of
}

func (b *book) booked() int     { return b.get(&b.count) }
func (b *book) outOfOrder() int { return b.get(&b.disorder) }
func (b *book) failures() int   { return b.get(&b.failed) }
func (b *book) most() int       { return b.get(&b.top) }
