package backoff

import "time"

// leastHold is how long something must have held, at least, to count as whole again.
const leastHold = time.Second

// Counter counts attempts and gives the delay before each. It starts anew only when what was attempted has held for a
// while, so that something which succeeds and fails again at once is not tried in a hot loop.
//
//	counter := backoff.NewCounter(policy)
//	for {
//		if err := backoff.Sleep(ctx, counter.Next()); err != nil {
//			return err
//		}
//		start := time.Now()
//		use(connect())
//		counter.Lost(time.Since(start))
//	}
//
// It is not safe for concurrent use.
type Counter struct {
	policy   Policy
	attempts int
	delay    time.Duration // the one that preceded the last attempt
}

// NewCounter returns a Counter with the delays of p.
func NewCounter(p Policy) *Counter { return &Counter{policy: p} }

// Next returns the delay before the next attempt and counts that attempt. The first has none.
func (c *Counter) Next() time.Duration {
	c.delay = c.policy.Delay(c.attempts)
	c.attempts++
	return c.delay
}

// Lost tells that what the last attempt gained is lost again after it has held for heldFor; zero when it gained nothing.
// When that is at least a second and at least the delay that preceded the attempt, the count starts anew and Next gives
// no delay; otherwise it goes on.
func (c *Counter) Lost(heldFor time.Duration) {
	if heldFor >= max(leastHold, c.delay) {
		c.Reset()
	}
}

// Reset makes the next attempt the first.
func (c *Counter) Reset() { c.attempts, c.delay = 0, 0 }

// Attempts returns how many attempts were made since the count started: 0 before the first.
func (c *Counter) Attempts() int { return c.attempts }
