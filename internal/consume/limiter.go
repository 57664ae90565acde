package consume

import (
	"sync"
	"time"
)

// slack is how far a limiter catches up with starts that came late because timers are coarse.
const slack = 10 * time.Millisecond

// limiter spaces handler starts evenly, over all workers of a loop together: in any time T at most T x rate + 1 starts, and
// those of another 10 ms.
type limiter struct {
	mu       sync.Mutex
	interval time.Duration
	next     time.Time
}

// newLimiter returns nil, which limits nothing, for a rate of 0.
func newLimiter(perSecond float64) *limiter {
	if perSecond <= 0 {
		return nil
	}
	return &limiter{interval: time.Duration(float64(time.Second) / perSecond)}
}

// reserve takes the next start and returns how long to wait for it.
func (l *limiter) reserve(now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if earliest := now.Add(-slack); l.next.Before(earliest) {
		l.next = earliest
		if l.interval > slack {
			l.next = now
		}
	}
	wait := l.next.Sub(now)
	l.next = l.next.Add(l.interval)
	return max(wait, 0)
}

// cancel gives a start back that was reserved and not used.
func (l *limiter) cancel() {
	l.mu.Lock()
	l.next = l.next.Add(-l.interval)
	l.mu.Unlock()
}
