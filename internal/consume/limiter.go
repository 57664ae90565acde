package consume

import (
	"slices"
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
	unused   []time.Time // starts before next that were given back; at most one for each worker
}

// newLimiter returns nil, which limits nothing and can be asked all the same, for a rate of 0.
func newLimiter(perSecond float64) *limiter {
	if perSecond <= 0 {
		return nil
	}
	return &limiter{interval: time.Duration(min(float64(time.Second)/perSecond, float64(longest)))}
}

// longest keeps the times of a rate next to nothing in their range.
const longest = 100 * 365 * 24 * time.Hour

// reserve takes the next start and returns how long to wait for it.
func (l *limiter) reserve(now time.Time) (start time.Time, wait time.Duration) {
	if l == nil {
		return now, 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	earliest := now
	if l.interval <= slack {
		earliest = now.Add(-slack)
	}
	l.unused = slices.DeleteFunc(l.unused, func(t time.Time) bool { return t.Before(earliest) })
	if len(l.unused) > 0 {
		start = slices.MinFunc(l.unused, time.Time.Compare)
		at := slices.IndexFunc(l.unused, start.Equal)
		l.unused = slices.Delete(l.unused, at, at+1)
	} else {
		if l.next.Before(now.Add(-slack)) {
			l.next = earliest
		}
		start = l.next
		l.next = l.next.Add(l.interval)
	}
	return start, max(start.Sub(now), 0)
}

// cancel gives a start back that was reserved and not used.
func (l *limiter) cancel(start time.Time) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unused = append(l.unused, start)
}
