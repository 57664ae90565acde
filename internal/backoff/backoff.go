// Package backoff computes how long to wait before the next attempt at something that failed: at once after a first
// loss, then ever longer up to a bound, jittered so that many clients which lost the same broker do not come back
// together. It is pure arithmetic, but for Sleep.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Defaults of a Policy.
const (
	DefaultMin = 100 * time.Millisecond
	DefaultMax = 30 * time.Second
)

// Policy bounds the delays between attempts. The zero value is the default; it is safe for concurrent use.
type Policy struct {
	Min time.Duration // before jitter, the delay before attempt 1. Zero or less: 100 ms
	Max time.Duration // the longest delay. Zero or less: 30 s; when less than Min, Min holds
}

// Delay returns how long to wait before the given attempt. Attempt 0, the first after a loss, has no delay; from 1 on
// the delay is Min doubled with each attempt up to Max, of which a random half to the whole is taken.
func (p Policy) Delay(attempt int) time.Duration {
	full := p.full(attempt)
	if full <= 0 {
		return 0
	}
	half := full / 2
	return half + rand.N(full-half+1)
}

// full returns the delay without jitter, the most that Delay returns.
func (p Policy) full(attempt int) time.Duration {
	if attempt <= 0 {
		return 0
	}
	d, most := p.Min, p.Max
	if d <= 0 {
		d = DefaultMin
	}
	if most <= 0 {
		most = DefaultMax
	}
	most = max(most, d)
	for range attempt - 1 {
		if d > most/2 { // doubling would pass most, or overflow
			return most
		}
		d *= 2
	}
	return d
}

// Sleep waits for d and returns nil, or returns the error of ctx when that ends first. It does not wait when d is zero or
// less, but returns the error of a ctx that has ended already.
func Sleep(ctx context.Context, d time.Duration) error {
	if err := ctx.Err(); err != nil || d <= 0 {
		return err
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
