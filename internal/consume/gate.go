package consume

import (
	"sync"
	"sync/atomic"
	"time"
)

// narrowAfter is the number of "not now" answers in a row after which one handler of the loop runs at a time.
const narrowAfter = 3

// gate lets every worker of a loop through until narrowAfter answers in a row, over all workers, were "not now": from then on one at
// a time, until one succeeds. So while a database is away it is asked by one handler, not by all of them at once.
type gate struct {
	row   atomic.Int32  // refusals since the last success
	token chan struct{} // capacity 1: held by the one handler that may run while the gate is narrow

	mu     sync.Mutex // guards changes of row, and wide
	opened chan struct{}
}

func newGate() *gate { return &gate{token: make(chan struct{}, 1)} }

func (g *gate) narrow() bool { return g.row.Load() >= narrowAfter }

// wide returns a channel that is closed when the gate opens again, or nil when it is open.
func (g *gate) wide() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.opened
}

// enter waits until the caller's handler may run. held says that leave must be called after it. halt or late ends the wait, with
// ok false.
func (g *gate) enter(halt <-chan struct{}, late <-chan time.Time) (held, ok bool) {
	for g.narrow() {
		wide := g.wide()
		if wide == nil {
			continue // just opened
		}
		select {
		case g.token <- struct{}{}:
			if g.narrow() {
				return true, true
			}
			g.leave()
		case <-wide:
		case <-halt:
			return false, false
		case <-late:
			return false, false
		}
	}
	return false, true
}

func (g *gate) leave() { <-g.token }

// refused counts a "not now" and returns how many there were in a row.
func (g *gate) refused() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.row.Add(1)
	if n >= narrowAfter && g.opened == nil {
		g.opened = make(chan struct{})
	}
	return int(n)
}

// passed notes a success. It returns true when that opened the gate.
func (g *gate) passed() bool {
	if g.row.Load() == 0 {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.row.Store(0)
	if g.opened == nil {
		return false
	}
	close(g.opened)
	g.opened = nil
	return true
}
