package idempotency

import (
	"errors"
	"fmt"
	"time"

	"github.com/warrenmq/warren/internal/codec"
)

var (
	// ErrDone is what a function returns whose own look at the data told it that the work is done already: its transaction
	// is rolled back, and the call or the handler around it succeeds. It is how a handler under StateCheck ends a duplicate.
	ErrDone = errors.New("idempotency: done already")

	// ErrBusy is in the chain of an error when the same key was being worked on for all of LockTimeout, in another
	// transaction that has not ended. It says NotNow: nothing is known to be done, nothing failed; the message stays and is
	// tried again.
	ErrBusy = errors.New("idempotency: the same key is in progress")

	// ErrNoKey is in the chain of an error about a message without a key, or with one that cannot be stored: empty, longer
	// than 255 bytes, with a NUL or invalid UTF-8 in it, or no UUID where Config.UUIDKeys asks for one. It is permanent: the
	// message is dead-lettered, with the reason, and its function is not called.
	ErrNoKey = codec.Permanent(errors.New("idempotency: no usable key"))

	// ErrKeyReused is in the chain of an error when a key is known, but of something else: DoResult was given another
	// fingerprint for it than the first time, or it was recorded without a result. It is permanent.
	ErrKeyReused = codec.Permanent(errors.New("idempotency: key used for something else"))
)

var (
	errNoPool = errors.New("pool: nil, this Inbox only does Claim")
	errNoFunc = errors.New("fn: nil")
	// errNotYours is for a function that wants to end the transaction it was lent.
	errNotYours = errors.New("idempotency: the transaction ends when the function has returned: it is not to be committed or rolled back inside")
	errUnread   = errors.New("idempotency: rows of a query are still open: they are to be closed inside")
	// errLost is of a transaction whose connection was lost, when a function did not return the error that told it.
	errLost = errors.New("idempotency: the connection was lost before COMMIT")
	// errSwallowed is of a transaction that PostgreSQL had given up when it was to be committed.
	errSwallowed = errors.New("a statement failed and its error was not returned, so nothing was committed")
	errKnown     = errors.New("every key is known")
	errUnknown   = errors.New("whether it was committed is not known")
	errPanicked  = errors.New("panicked") // for the metrics: nobody gets it
)

// notNow is the error of something that could not be done now, for no fault of its message: nothing was decided, and it can
// be tried again.
type notNow struct{ err error }

func (e *notNow) Error() string { return e.err.Error() }
func (e *notNow) Unwrap() error { return e.err }
func (e *notNow) NotNow() bool  { return true }

// RetryAfter is short for a database that is away, so that work goes on soon after it is back: a consumer that is told so by
// several messages in a row asks with one at a time. A key in progress is asked for ever less often.
func (e *notNow) RetryAfter() time.Duration {
	if errors.Is(e.err, ErrBusy) {
		return 0
	}
	return awayPause
}

const awayPause = time.Second

// later makes a "not now" of err.
func later(format string, args ...any) error {
	return &notNow{fmt.Errorf("idempotency: "+format, args...)}
}

func isNotNow(err error) bool {
	var n interface{ NotNow() bool }
	return errors.As(err, &n) && n.NotNow()
}

func isPermanent(err error) bool {
	var p interface{ Permanent() bool }
	return errors.As(err, &p) && p.Permanent()
}

// isDone does not look into joined errors: what another one of them says is not done.
func isDone(err error) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		if err == ErrDone {
			return true
		}
	}
	return false
}
