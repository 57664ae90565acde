package retry

import (
	"errors"
	"fmt"
	"time"

	"github.com/warrenmq/warren/internal/codec"
)

// Permanent marks err as one that trying again cannot mend: its message goes to the dead-letter queue at once. Any error
// with a method Permanent() bool that returns true does the same, also when it is wrapped or joined; of several in a chain the
// first has the word. nil stays nil.
func Permanent(err error) error { return codec.Permanent(err) }

// After marks err as one after which the message is not to be tried again earlier than d from now, whatever delay the
// policy has for it; the attempt counts. The delay is the policy's shortest that is not shorter than d; when d is longer
// than all of them, the message waits several times in the longest, without being handled or counted. Any error with a
// method RetryAfter() time.Duration does the same, wrapped or not. d of 0 or less leaves it to the policy; more than 49 days
// are 49. nil stays nil.
func After(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return &after{err, d}
}

type after struct {
	error
	d time.Duration
}

func (e *after) RetryAfter() time.Duration { return e.d }
func (e *after) Unwrap() error             { return e.error }

// notNow tells whoever consumes to keep the message and to call again later.
type notNow struct {
	why string
	err error // nil: that is all
}

func (e *notNow) Error() string {
	if e.err == nil {
		return "retry: " + e.why
	}
	return "retry: " + e.why + ": " + wordsOf(e.err)
}

func (e *notNow) Unwrap() error { return e.err }
func (e *notNow) NotNow() bool  { return true }

// wordsOf is the text of a handler's error, also of one whose Error panics: a nil pointer of its type, mostly.
func wordsOf(err error) string { return fmt.Sprint(err) }

// panicked is a recovered panic of a handler. It unwraps to nothing: what a handler panics with says nothing about the message.
type panicked struct {
	value any
	stack []byte
}

func (e *panicked) Error() string { return fmt.Sprintf("handler panicked: %v", e.value) }

func isPermanent(err error) bool {
	var p interface{ Permanent() bool }
	return errors.As(err, &p) && p.Permanent()
}

func isUndecodable(err error) bool {
	var u interface{ Undecodable() bool }
	return errors.As(err, &u) && u.Undecodable()
}

func isNotNow(err error) bool {
	var n interface{ NotNow() bool }
	return errors.As(err, &n) && n.NotNow()
}

// retryAfter returns the time that err names, 0 when it names none.
func retryAfter(err error) time.Duration {
	var a interface{ RetryAfter() time.Duration }
	if errors.As(err, &a) {
		return min(max(a.RetryAfter(), 0), maxDelay)
	}
	return 0
}
