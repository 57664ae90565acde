// Package once does something until it has succeeded once.
package once

import (
	"context"
	"sync/atomic"
)

// Success runs a function until it has succeeded. Unlike sync.Once a failure is not final, and waiting for another
// caller's attempt ends with a context. The zero value is not usable; make one with New.
type Success struct {
	done atomic.Bool
	turn chan struct{}
}

// New returns a Success whose function has not run.
func New() *Success { return &Success{turn: make(chan struct{}, 1)} }

// Do returns nil when some call has succeeded; otherwise it runs f, one caller at a time, and returns its error.
func (s *Success) Do(ctx context.Context, f func(ctx context.Context) error) error {
	if s.done.Load() {
		return nil
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
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
