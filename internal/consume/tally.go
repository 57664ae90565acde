package consume

import (
	"sync"
	"time"
)

// tally counts something that others wait to be few.
type tally struct {
	mu      sync.Mutex
	n       int
	changed chan struct{} // closed and replaced when n falls
}

func newTally() *tally { return &tally{changed: make(chan struct{})} }

func (t *tally) add() {
	t.mu.Lock()
	t.n++
	t.mu.Unlock()
}

func (t *tally) done() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n--
	close(t.changed)
	t.changed = make(chan struct{})
}

func (t *tally) state() (n int, fell <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n, t.changed
}

// atMost waits until the count is n or less. It returns the count, and false when stop or limit came first.
func (t *tally) atMost(n int, stop <-chan struct{}, limit <-chan time.Time) (int, bool) {
	for {
		now, fell := t.state()
		if now <= n {
			return now, true
		}
		select {
		case <-fell:
		case <-stop:
			return now, false
		case <-limit:
			return now, false
		}
	}
}
