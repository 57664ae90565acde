package reconnect

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
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
	grace := time.NewTimer(time.Second)
	defer grace.Stop()
	select {
	case <-c.closed:
		return c.closeErr
	case <-grace.C:
		return fmt.Errorf("reconnect: close: %w", ended(ctx))
	}
}

func (c *Conn) close(ctx context.Context) {
	defer close(c.closed)
	ctx, cancel := context.WithTimeout(ctx, closeBound)
	defer cancel()
	c.end(ErrClosed)
	workers := c.workers.shut(ctx)
	links := []*link{c.publishing, c.consuming}
	for _, l := range links {
		l.drain()
	}
	calls := c.calls.shut(ctx)
	deadline := time.Now()
	if d, ok := ctx.Deadline(); ok && ctx.Err() == nil {
		deadline = d
	}
	var wg sync.WaitGroup
	faults := make([]error, len(links))
	for i, l := range links {
		wg.Go(func() { faults[i] = l.close(deadline) })
	}
	wg.Wait()
	if workers > 0 || calls > 0 {
		faults = append(faults, fmt.Errorf("%d supervised functions and %d calls were cut off: %w", workers, calls, ended(ctx)))
		c.awaitCutOff()
	}
	c.board.close(time.After(time.Second))
	if err := errors.Join(faults...); err != nil {
		c.closeErr = fmt.Errorf("reconnect: close: %w", err)
	}
}

// awaitCutOff gives what was cut off the moment it takes to notice: its links are gone.
func (c *Conn) awaitCutOff() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c.calls.shut(ctx)
	c.workers.shut(ctx)
}
