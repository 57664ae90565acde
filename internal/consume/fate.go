package consume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// fate is what becomes of a message after its handler returned.
type fate int

const (
	acked  fate = iota // done
	dead               // dead-lettered
	later              // kept, and tried again
	backed             // handed back to the queue
)

func (f fate) String() string { return [...]string{"acked", "dead", "later", "backed"}[f] }

// judge reads the error's behaviour. ended says that the handler's context was ended by a shutdown whose grace period
// is over: its error then says nothing about the message (in general it is the context's own, come back through a database or an HTTP
// client), so the message goes back, unless the error calls itself permanent.
func judge(err error, ended bool) fate {
	if _, ok := err.(*Answered); ok {
		return acked
	}
	switch {
	case err == nil:
		return acked
	case isNotNow(err):
		return later
	case ended && !isPermanent(err):
		return backed
	default:
		return dead
	}
}

// Answered is the error of a message whose sender was told of it: the message is done with, and only telemetry hears of the
// error. It counts when the handler returns it itself, not wrapped.
type Answered struct {
	Word string // error.type, out of few
	Err  error
}

func (e *Answered) Error() string { return e.Err.Error() }
func (e *Answered) Unwrap() error { return e.Err }

// errorTypeGoexit is the errorType of a handler that ended its goroutine.
const errorTypeGoexit = "goexit"

// errorType returns a word, out of few, for what a handler returned whose context is ctx.
func errorType(ctx context.Context, err error) string {
	if a, ok := err.(*Answered); ok {
		return a.Word
	}
	var p *panicError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &p):
		return "panic"
	case isNotNow(err):
		return "not_now"
	case errors.Is(err, context.DeadlineExceeded) && errors.Is(ctx.Err(), context.DeadlineExceeded):
		return "timeout"
	case isPermanent(err):
		return "permanent"
	}
	return "error"
}

func isNotNow(err error) bool {
	var n interface{ NotNow() bool }
	return errors.As(err, &n) && n.NotNow()
}

func isPermanent(err error) bool {
	var p interface{ Permanent() bool }
	return errors.As(err, &p) && p.Permanent()
}

// First and longest wait after a "not now" that names no time of its own.
const (
	firstDelay = time.Second
	maxDelay   = time.Minute
)

// retryDelay is how long to wait after the try-th "not now" of a message, counted from 1. named says that the error
// named the time itself.
func retryDelay(err error, try int) (d time.Duration, named bool) {
	var r interface{ RetryAfter() time.Duration }
	if errors.As(err, &r) {
		if d := r.RetryAfter(); d > 0 {
			return d, true
		}
	}
	d = firstDelay
	for ; try > 1 && d < maxDelay; try-- {
		d *= 2
	}
	return min(d, maxDelay), false
}

// splitBatch returns the error of each of n messages. An error that unwraps into exactly n (reconnect.BatchError) speaks of each; nil
// speaks of all; any other of all too, since it does not say which are done.
func splitBatch(err error, n int) []error {
	if err == nil {
		return make([]error, n)
	}
	each := perMessage(err)
	if len(each) == n {
		return each
	}
	if slices.Contains(each, nil) { // a join of errors has none
		err = fmt.Errorf("the handler's error has %d entries for %d messages: %w", len(each), n, err)
	}
	whole := &wholeBatch{error: err, messages: n}
	all := make([]error, n)
	for i := range all {
		all[i] = whole
	}
	return all
}

// wholeBatch is the error of every message of a batch.
type wholeBatch struct {
	error
	messages int
	logged   bool
}

func (e *wholeBatch) Unwrap() error { return e.error }

func perMessage(err error) []error {
	for err != nil {
		if m, ok := err.(interface{ Unwrap() []error }); ok {
			return m.Unwrap()
		}
		err = errors.Unwrap(err)
	}
	return nil
}

// panicError is a recovered panic of a handler. It unwraps to nothing: what a handler panics with does not steer the loop.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("handler panicked: %v", e.value) }

// tooLarge is the cause of a message above MaxBody.
type tooLarge struct{ size, limit int }

func (e *tooLarge) Error() string {
	return fmt.Sprintf("body of %d bytes is larger than %d", e.size, e.limit)
}

func (e *tooLarge) Permanent() bool { return true }

// errGoexit is the cause of a message whose handler ended its goroutine.
var errGoexit = errors.New("handler called runtime.Goexit (in a test: FailNow outside the test's goroutine)")
