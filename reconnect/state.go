package reconnect

import (
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"
)

// State is the state of a link or of a supervised function, as data: it compares, prints and encodes to JSON.
type State struct {
	// Name is "publishing" or "consuming" for a link, otherwise the name given to Supervise.
	Name string
	// Phase of a link: connecting, connected, blocked (the broker has a resource alarm), closed. Of a supervised
	// function: starting (waiting for its channel), running, and what it reports: consuming, waiting, paused; OnState is
	// told a last one, ended. A link that nothing has used yet has no State.
	Phase string
	// Since is when the phase began.
	Since time.Time
	// Attempts is how often in a row it was tried to leave connecting or starting.
	Attempts int
	// NextTry is when that is tried again; zero when it is being tried, or nothing has to be.
	NextTry time.Time
	// Reason says why it is not connected, running or consuming, or was not the last time; empty when all is well.
	Reason string
}

const (
	phaseConnecting = "connecting"
	phaseConnected  = "connected"
	phaseBlocked    = "blocked"
	phaseClosed     = "closed"
	phaseEnded      = "ended"
)

// at returns s as it is seen at a time: a try that is due is being made.
func (s State) at(now time.Time) State {
	if !s.NextTry.After(now) {
		s.NextTry = time.Time{}
	}
	return s
}

// board holds the states and tells the hook about their changes.
type board struct {
	hook func(State)

	mu      sync.Mutex
	states  map[any]State // by the one it is about: a link's role or a *supervised
	order   []any
	links   map[any]*linkTimes
	pending []any         // whose change the hook was not told yet, oldest first, each once; or a last State
	wake    chan struct{} // capacity 1
	stop    chan struct{}
	stopped chan struct{}
}

func newBoard(hook func(State)) *board {
	b := &board{hook: hook, states: map[any]State{}, links: map[any]*linkTimes{}, wake: make(chan struct{}, 1), stop: make(chan struct{}), stopped: make(chan struct{})}
	if hook == nil {
		close(b.stopped)
		return b
	}
	go b.tell()
	return b
}

// unpanicked makes of a hook one whose panic is no more than a line in the log: nobody else could recover it in its goroutine.
func unpanicked(hook func(State), log *slog.Logger) func(State) {
	if hook == nil {
		return nil
	}
	return func(s State) {
		defer func() {
			if p := recover(); p != nil {
				log.Error("panic in OnState", "panic", p, "stack", string(debug.Stack()))
			}
		}()
		hook(s)
	}
}

// set records the state of a link.
func (b *board) set(role string, s State) {
	s.Name = role
	b.mu.Lock()
	defer b.mu.Unlock()
	b.put(role, s)
}

// add makes room for a supervised function, until remove.
func (b *board) add(who any, s State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.put(who, s)
}

// update records the state of a supervised function, unless that was removed: what it started may outlive it.
func (b *board) update(who any, s State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.states[who]; known {
		b.put(who, s)
	}
}

// put records a state; Since is kept when only the details of a phase changed. The caller holds mu.
func (b *board) put(who any, s State) {
	old, known := b.states[who]
	s.Since = time.Now()
	if known && old.Phase == s.Phase {
		s.Since = old.Since
	} else if role, isLink := who.(string); isLink {
		b.times(role).change(old, s)
	}
	if !known {
		b.order = append(b.order, who)
	}
	b.states[who] = s
	if b.hook == nil || known && old == s {
		return
	}
	if !slices.Contains(b.pending, who) {
		b.tellOf(who)
	}
}

// remove forgets a supervised function, and tells the hook why it ended.
func (b *board) remove(who any, why error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	last := State{Name: b.states[who].Name, Phase: phaseEnded, Since: time.Now(), Reason: textOf(why)}
	is := func(o any) bool { return o == who }
	delete(b.states, who)
	b.order = slices.DeleteFunc(b.order, is)
	b.pending = slices.DeleteFunc(b.pending, is)
	if b.hook != nil {
		b.tellOf(last)
	}
}

// tellOf has the hook told about who, or a last State. The caller holds mu.
func (b *board) tellOf(who any) {
	b.pending = append(b.pending, who)
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// all returns the states, links first, in the order in which they appeared.
func (b *board) all() []State {
	b.mu.Lock()
	defer b.mu.Unlock()
	var links, workers []State
	for _, who := range b.order {
		s := b.states[who].at(time.Now())
		if _, isLink := who.(string); isLink {
			links = append(links, s)
		} else {
			workers = append(workers, s)
		}
	}
	return append(links, workers...)
}

// tell calls the hook, outside every lock, until close has been called and nothing is pending.
func (b *board) tell() {
	defer close(b.stopped)
	for {
		if s, ok := b.next(); ok {
			b.hook(s)
			continue
		}
		select {
		case <-b.wake:
		case <-b.stop:
			if s, ok := b.next(); ok {
				b.hook(s)
				continue
			}
			return
		}
	}
}

func (b *board) next() (State, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.pending) > 0 {
		who := b.pending[0]
		b.pending = b.pending[1:]
		if last, ok := who.(State); ok {
			return last, true
		}
		if s, ok := b.states[who]; ok {
			return s.at(time.Now()), true
		}
	}
	return State{}, false
}

// close ends the teller after what is pending, and waits for it.
func (b *board) close(deadline <-chan struct{}) {
	close(b.stop)
	select {
	case <-b.stopped:
	case <-deadline: // a hook that never returns is its owner's
	}
}
