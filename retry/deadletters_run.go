package retry

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/apart"
	"github.com/warrenmq/warren/reconnect"
)

// How long a run may take to give back what it has in hand: when its context has ended, and when its caller has only seen
// enough.
const (
	putBackWithin       = 5 * time.Second
	putBackEnoughWithin = time.Minute
)

var errLost = errors.New("the channel is lost")

// errEnough ends a run whose caller wants no more of it.
var errEnough = errors.New("enough seen")

// grace is how long a run may go on whose context has ended.
func grace(ctx context.Context) time.Duration {
	if context.Cause(ctx) == errEnough {
		return putBackEnoughWithin
	}
	return putBackWithin
}

// refusal is the end of a run for a reason that another channel will not change.
type refusal struct{ err error }

func (e *refusal) Error() string { return e.err.Error() }
func (e *refusal) Unwrap() error { return e.err }

// run is one call that takes messages.
type run struct {
	letters *DeadLetters
	kind    kind
	pass    func(life context.Context, r *reader) error

	unreadable atomic.Pointer[error]
	busy       atomic.Bool // pass is running
	left       int         // messages that the last channel has left at most,
	expect     int         // and for certain
	lost       time.Time   // when that was lost

	over bool // it has ended with err
	err  error
}

// run calls pass with a reader on a connection of its own, and again after each loss of that connection, until pass returns
// something else. Its life ends with the channel, and some time after ctx, so that pass, which sees by the reader's stop that
// ctx has ended, can put back what is held. run returns what pass did, or why there is no channel; soon after ctx has
// ended in any case.
func (l *DeadLetters) run(ctx context.Context, pass func(life context.Context, r *reader) error) error {
	kind, err := l.proven(ctx)
	if err != nil {
		return err
	}
	r := &run{letters: l, kind: kind, pass: pass}
	return notLongAfter(ctx, func() error { return r.supervise(ctx) })
}

// notLongAfter returns what f does, or, when f takes too long after ctx has ended, leaves it alone: a connection that is
// frozen is given up only when its heartbeats fail to come.
func notLongAfter(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	go func() {
		err := errors.New("a function of the caller's has ended its goroutine")
		defer func() { done <- err }()
		err = f()
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	late := time.NewTimer(grace(ctx) + time.Second)
	defer late.Stop()
	select {
	case err := <-done:
		return err
	case <-late.C:
		return fmt.Errorf("%w, and the broker does not answer: it gives back what was in hand when it notices", context.Cause(ctx))
	}
}

// supervise has the passes run. They may outlive ctx for a little while, to give back what they hold.
func (r *run) supervise(ctx context.Context) error {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer context.AfterFunc(ctx, func() {
		if r.busy.Load() {
			_ = pause(life, grace(ctx))
		}
		end()
	})()
	wish := &apart.Wish{Unreadable: func(why error) { r.unreadable.Store(&why) }}
	l := r.letters
	err := l.conn.Supervise(apart.With(life, wish), "dead letters of "+l.queue, reconnect.Topology{},
		func(life context.Context, ch *amqp.Channel) error {
			defer r.busy.Store(false)
			if r.busy.Store(true); r.over || ctx.Err() != nil {
				return nil
			}
			err, lost := r.once(ctx, life, ch)
			switch {
			case lost && errors.Is(context.Cause(life), reconnect.ErrClosed):
				return nil
			case lost:
				return errLost // not err, which may be permanent
			}
			r.over, r.err = true, err
			end() // so that it returns, whatever becomes of the channel
			return nil
		})
	switch {
	case r.over:
		return r.err
	case err != nil:
		return err
	}
	return context.Cause(ctx)
}

// once is one pass. lost tells that its channel was, so that there is to be another one.
func (r *run) once(ctx, life context.Context, ch *amqp.Channel) (err error, lost bool) {
	if why := r.unreadable.Load(); why != nil {
		return fmt.Errorf("one of them cannot be read, and closes the connection; SkipUnreadable takes it out: %w", *why), false
	}
	rd := &reader{ch: ch, queue: deadLetterQueue(r.letters.queue), kind: r.kind, stop: ctx.Done(), portion: 1,
		total: r.left, expect: r.expect, until: r.lost.Add(r.patience()), rescue: r.letters.rescue}
	begun := !r.lost.IsZero()
	if !begun {
		err = rd.begin(life)
		begun = err == nil
	}
	if err == nil {
		err = r.pass(life, rd)
	}
	var final *refusal
	switch {
	case err == nil, errors.As(err, &final):
		return err, false
	case ctx.Err() != nil:
		return cutShort(ctx, err), false
	case life.Err() != nil, ch.IsClosed(), errors.Is(err, amqp.ErrClosed) && endsSoon(life):
		switch codeOf(err) {
		case amqp.NotFound, amqp.AccessRefused, amqp.ResourceLocked:
			return err, false
		}
		if begun {
			r.left, r.expect, r.lost = rd.left(), rd.left()-rd.doubt, time.Now()
		}
		return err, true
	}
	return err, false
}

// endsSoon waits for the end of life, which a loss brings about at once: the driver marks a connection closed a moment before
// its channels.
func endsSoon(life context.Context) bool {
	late := time.NewTimer(answerWithin)
	defer late.Stop()
	select {
	case <-life.Done():
		return true
	case <-late.C:
		return false
	}
}

// cutShort is err of what ran when ctx ended: that comes first, since the rest may follow from it.
func cutShort(ctx context.Context, err error) error {
	if why := context.Cause(ctx); why != nil && !errors.Is(err, why) {
		return fmt.Errorf("%w, and then: %w", why, err)
	}
	return err
}

// patience is how long the broker may take to notice that a connection is lost.
func (r *run) patience() time.Duration { return 3*r.letters.conn.Config().Heartbeat + time.Second }
