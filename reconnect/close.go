package reconnect

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/warrenmq/warren/internal/prefix"
)

// closeBound is how long Close takes at most, whatever its context says.
const closeBound = 30 * time.Second

// Close ends everything that stands on c: supervised functions drain and return ErrClosed, publishes in progress get
// their confirmations, then both connections are closed. What waits for a link that is down is given up at once. Close is
// bounded by ctx and by 30 s, whichever is first; what is not done by then is cut off and counted in the error. It may be
// called again and concurrently: it always waits for, and returns, the outcome of the first call. Afterwards nothing is
// dialed and no goroutine of c is left.
func (c *Conn) Close(ctx context.Context) error {
	c.closing.Do(func() { go c.close(ctx) })
	select {
	case <-c.closed:
		return c.closeErr
	case <-ctx.Done():
	}
	// close is bounded by the first caller's context and needs a moment to cut off what is left; this caller's may be
	// over, but a Close that returns while goroutines still run would be no Close.
	over := time.NewTimer(grace)
	defer over.Stop()
	select {
	case <-c.closed:
		return c.closeErr
	case <-over.C:
		return prefix.Wrap("reconnect: close", ended(ctx))
	}
}

const (
	// lastMoment is what Close adds to its bound for what it has cut off to notice that.
	lastMoment = 800 * time.Millisecond
	// grace is for how long a caller whose context has ended waits for the outcome: the moment that it takes, and what a busy
	// machine may add to it. Who goes before would not learn what was cut off.
	grace = lastMoment + 2*time.Second
)

func (c *Conn) close(ctx context.Context) {
	defer close(c.closed)
	ctx, cancel := context.WithTimeout(ctx, closeBound)
	defer cancel()
	c.end(ErrClosed)
	observed := c.observed.stop()
	workers := c.workers.shut(ctx)
	links := []*link{c.publishing, c.consuming}
	for _, l := range links {
		links = append(links, l.unreadable.shut()...)
	}
	for _, l := range links {
		l.drain()
	}
	calls := c.calls.shut(ctx)

	deadline, _ := ctx.Deadline()
	if ctx.Err() != nil {
		deadline = time.Now()
	}
	last, cancelLast := context.WithDeadline(context.Background(), deadline.Add(lastMoment))
	defer cancelLast()
	var wg sync.WaitGroup
	faults := make([]error, len(links))
	for i, l := range links {
		wg.Go(func() { faults[i] = l.close(deadline, last) })
	}
	wg.Wait()
	if workers > 0 || calls > 0 {
		faults = append(faults, fmt.Errorf("%d supervised functions and %d calls were cut off: %w", workers, calls, ended(ctx)))
		c.calls.shut(last)
		c.workers.shut(last)
	}
	c.board.close(last.Done())
	select {
	case <-observed:
	case <-last.Done():
		faults = append(faults, errors.New("the MeterProvider collects without an end, and does not let go"))
	}
	if err := errors.Join(faults...); err != nil {
		c.closeErr = prefix.Wrap("reconnect: close", err)
	}
}
