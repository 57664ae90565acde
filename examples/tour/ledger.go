package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/warrenmq/warren/workqueue"
)

// parcel is the message of the chapters about a depot.
type parcel struct {
	Number int
}

// ledger books parcels. A parcel counts once, however often it comes.
type ledger struct {
	mu       sync.Mutex
	booked   map[int]bool
	byWorker map[string]int
	repeated int           // parcels that came once more after they had been booked
	changed  chan struct{} // closed, and made anew, with each booking
}

func newLedger() *ledger {
	return &ledger{booked: map[int]bool{}, byWorker: map[string]int{}, changed: make(chan struct{})}
}

var errAddress = errors.New("the address cannot be read")

// handler returns the handler of a worker that needs some time for a parcel, and cannot deliver parcel number bad.
func (l *ledger) handler(worker string, takes time.Duration, bad int) workqueue.Handler {
	return workqueue.JSON(func(ctx context.Context, p parcel) error {
		select {
		case <-time.After(takes):
		case <-ctx.Done(): // the connection it came by is gone: the broker gives it to somebody else
			return ctx.Err()
		}
		if p.Number == bad {
			return fmt.Errorf("parcel %d: %w", p.Number, errAddress)
		}
		l.book(worker, p.Number)
		return nil
	})
}

func (l *ledger) book(worker string, number int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.booked[number] {
		l.repeated++
		return
	}
	l.booked[number] = true
	l.byWorker[worker]++
	close(l.changed)
	l.changed = make(chan struct{})
}

// wait blocks until so many parcels are booked.
func (l *ledger) wait(ctx context.Context, parcels int) error {
	return l.until(ctx, parcels, func() int { return len(l.booked) })
}

// waitFor blocks until all the given parcels are booked.
func (l *ledger) waitFor(ctx context.Context, parcels []int) error {
	return l.until(ctx, len(parcels), func() int { return l.among(parcels) })
}

// until blocks until count, which is called with the lock held, gives so many.
func (l *ledger) until(ctx context.Context, parcels int, count func() int) error {
	for {
		l.mu.Lock()
		booked, changed := count(), l.changed
		l.mu.Unlock()
		if booked >= parcels {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d parcels: %w", booked, parcels, ctx.Err())
		}
	}
}

// of returns how many of the given parcels are booked.
func (l *ledger) of(parcels []int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.among(parcels)
}

func (l *ledger) among(parcels []int) (n int) {
	for _, number := range parcels {
		if l.booked[number] {
			n++
		}
	}
	return n
}

// counts returns how many parcels are booked, in all, again and by a worker.
func (l *ledger) counts(worker string) (booked, repeated, byWorker int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.booked), l.repeated, l.byWorker[worker]
}
