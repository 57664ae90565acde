package reconnect

import (
	"context"
	"sync"
	"sync/atomic"
)

// lane is a channel of a Publisher that is opened when it is needed, and anew on each session.
type lane struct {
	// open opens the channel. It blocks until the broker has answered or the connection is lost.
	open func(s *session) (*confirms, error)

	current atomic.Pointer[confirms] // the last one that was opened, unless it was set aside
	mu      sync.Mutex               // guards opening, is never held while anything waits
	opening *opening
}

// opening is a channel in the making, for all who need it at the time.
type opening struct {
	session  *session
	done     chan struct{} // closed when the following are set
	confirms *confirms
	err      error
}

// channel returns the lane's channel of s, opening it when there is none. The opening belongs to nobody's context: who
// does not wait for it any longer leaves it to the others.
func (l *lane) channel(ctx context.Context, s *session) (*confirms, error) {
	l.mu.Lock()
	if c := l.current.Load(); c != nil && c.session == s && c.alive() {
		l.mu.Unlock()
		return c, nil
	}
	o := l.opening
	if o == nil || o.session != s {
		o = &opening{session: s, done: make(chan struct{})}
		if !s.spawn(func() { l.fill(o) }) {
			l.mu.Unlock()
			return nil, ErrClosed
		}
		l.opening = o
	}
	l.mu.Unlock()
	select {
	case <-o.done:
		return o.confirms, o.err
	case <-ctx.Done():
		return nil, ended(ctx)
	case <-s.lost():
		return nil, errGone
	}
}

func (l *lane) fill(o *opening) {
	c, err := l.open(o.session)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err != nil:
		o.err = openingError{err}
	case l.opening != o: // overtaken by the next session
		c.retire()
		o.err = errGone
	default:
		o.confirms = c
		l.current.Store(c)
	}
	if l.opening == o {
		l.opening = nil
	}
	close(o.done)
}
