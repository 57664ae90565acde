// Package once does something until it has succeeded once.
package once

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
)

// ErrFull is returned by Do, at once, when as many calls wait already as may.
var ErrFull = errors.New("once: too many calls waiting")

// Success runs a function until it has succeeded. Unlike sync.Once a failure is not final, and waiting for another
// caller's attempt ends with a context. The zero value is not usable; make one with New.
type Success struct {
	done    atomic.Bool
	turn    chan struct{}
	limit   int64
	waiting atomic.Int64
}

// New returns a Success whose function has not run, and for which at most limit calls, the running one included, may wait
// at a time; a negative limit is none.
func New(limit int) *Success { return &Success{turn: make(chan struct{}, 1), limit: int64(limit)} }

// Happened reports whether some call has succeeded.
func (s *Success) Happened() bool { return s.done.Load() }

// Do returns nil when some call has succeeded; otherwise it runs f, one caller at a time, and returns its error.
func (s *Success) Do(ctx context.Context, f func(ctx context.Context) error) error {
	if s.done.Load() {
		return nil
	}
	defer s.waiting.Add(-1)
	if s.waiting.Add(1) > s.limit && s.limit >= 0 {
		return ErrFull
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		if cause := context.Cause(ctx); !errors.Is(cause, ctx.Err()) {
			return fmt.Errorf("%w: %w", ctx.Err(), cause)
		}
		return ctx.Err()
	}
	if s.done.Load() {
		return nil
	}
	err := f(ctx)
	if err == nil {
		s.done.Store(true)
	}
	return err
}
