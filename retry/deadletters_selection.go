package retry

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"

	"github.com/warrenmq/warren/reconnect"
)

// Selection says which dead letters. The zero value is all of them; of what is set, all must hold.
type Selection struct {
	// IDs are the MessageIds of those that are meant, of all that have them. nil: any; an empty list: none.
	IDs []string

	// Where, when set, says whether a dead letter is meant. It may be asked again about one after a lost connection. It runs
	// on another goroutine than the caller's.
	Where func(DeadLetter) bool

	// Limit is how many at most, the oldest ones. Default, and -1: no limit.
	Limit int

	// PerSecond is how many a second at most. Default: no limit.
	PerSecond float64

	// DryRun counts them, and does nothing.
	DryRun bool
}

const (
	// moveChunk is how many are confirmed, and then taken off the queue, together; so many come again at most when that is
	// interrupted.
	moveChunk = 100
	// maxReported bounds the messages whose own errors are returned.
	maxReported = 10
)

func (s Selection) validate() error {
	var faults []error
	if s.Limit < -1 {
		faults = append(faults, fmt.Errorf("Limit: %d, must be positive, or 0 or -1 for none", s.Limit))
	}
	if !(s.PerSecond >= 0) || math.IsInf(s.PerSecond, 0) {
		faults = append(faults, fmt.Errorf("PerSecond: %v, must be positive, or 0 for no limit", s.PerSecond))
	}
	return errors.Join(faults...)
}

// none tells that nothing can be meant.
func (s Selection) none() bool { return s.IDs != nil && len(s.IDs) == 0 }

// picky tells that there may be some that are not meant.
func (s Selection) picky() bool { return s.IDs != nil || s.Where != nil }

// Redrive sends dead letters back to the queue that l was made for, to no other, and returns how many. They come as they
// were first delivered, on their first attempt; only an Expiration they have no more. Each is taken off the dead-letter
// queue when the broker has confirmed its copy. Those that are ready when it begins are looked at, and sent, oldest first
// (with IDs or Where, the very oldest may come later), and what is not meant goes back to its place. One that is sent back, fails, and is a dead letter again while this still runs is not
// sent back a second time.
//
// It blocks until all is done or ctx has ended, through lost connections: what was in hand then, 100 messages at most, may
// have been sent back and be sent once more, and is counted again. Whatever else ends it leaves the rest where it was, and
// n says how many were sent: no queue takes them (*reconnect.ReturnedError), the queue is full (reconnect.ErrRefused), an
// alarm (reconnect.ErrBlocked), the dead-letter queue cannot be looked into. A message that cannot be published
// stays alone, and is named in the error.
func (l *DeadLetters) Redrive(ctx context.Context, s Selection) (n int, err error) {
	id := rand.Text()
	j := &job{letters: l, what: s, run: id, do: func(ctx context.Context, ls []letter) error {
		msgs := make([]reconnect.Message, len(ls))
		for i, letter := range ls {
			msgs[i] = reconnect.Message{Key: l.queue, Publishing: letter.back(id)}
		}
		return l.pub.PublishBatch(ctx, msgs)
	}}
	if n, err = j.move(ctx); err != nil {
		return n, l.failed("redrive", err)
	}
	return n, nil
}

// Discard is Redrive, but deletes.
func (l *DeadLetters) Discard(ctx context.Context, s Selection) (n int, err error) {
	j := &job{letters: l, what: s, do: func(context.Context, []letter) error { return nil }}
	if n, err = j.move(ctx); err != nil {
		return n, l.failed("discard", err)
	}
	return n, nil
}
