package consume

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// callCtx is the context of one handler call. It ends with its parent (the channel's: loss, or end of a shutdown's grace period), at
// the deadline of HandlerTimeout, or when the handler has returned, whichever is first.
//
// Most handlers that look at their context at all do it through Done or a child; the rest should not pay for a timer, a
// closure and a map entry in the parent per message. So the standard library's context is made on first use, and until then this
// one answers alone. Once made, it is what Value finds, so that context.Cause and the children's short cut work as ever.
type callCtx struct {
	parent   context.Context
	deadline time.Time // zero: none
	std      atomic.Pointer[stdCtx]
	mu       sync.Mutex // guards making std, and over
	over     bool       // handler returned
}

type stdCtx struct {
	context.Context
	cancel context.CancelFunc
}

func newCallCtx(parent context.Context, deadline time.Time) *callCtx {
	return &callCtx{parent: parent, deadline: deadline}
}

// end ends the context after its handler returned.
func (c *callCtx) end() {
	c.mu.Lock()
	c.over = true
	s := c.std.Load()
	c.mu.Unlock()
	if s != nil {
		s.cancel()
	}
}

func (c *callCtx) standard() *stdCtx {
	if s := c.std.Load(); s != nil {
		return s
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.std.Load(); s != nil {
		return s
	}
	s := new(stdCtx)
	if c.deadline.IsZero() {
		s.Context, s.cancel = context.WithCancel(c.parent)
	} else {
		s.Context, s.cancel = context.WithDeadline(c.parent, c.deadline)
	}
	if c.over {
		s.cancel()
	}
	c.std.Store(s)
	return s
}

// Deadline returns the end of HandlerTimeout, if there is one.
func (c *callCtx) Deadline() (time.Time, bool) {
	if c.deadline.IsZero() {
		return c.parent.Deadline()
	}
	return c.deadline, true
}

// Done returns a channel that is closed when the context ends.
func (c *callCtx) Done() <-chan struct{} { return c.standard().Done() }

// Err says whether and why the context ended. Once it is not nil it stays the same.
func (c *callCtx) Err() error {
	s := c.std.Load()
	if s == nil {
		if !c.hasEnded() {
			return nil
		}
		s = c.standard()
	}
	return s.Err()
}

func (c *callCtx) hasEnded() bool {
	if c.parent.Err() != nil || !c.deadline.IsZero() && !time.Now().Before(c.deadline) {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over
}

// Value returns what the parent knows under key.
func (c *callCtx) Value(key any) any {
	if s := c.std.Load(); s != nil {
		return s.Value(key)
	}
	return c.parent.Value(key)
}
