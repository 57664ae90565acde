package reconnect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/warrenmq/warren/internal/leave"
	"github.com/warrenmq/warren/internal/telemetry"
)

// PublishBatch publishes msgs in their order, without waiting for each, and returns nil when all were confirmed, otherwise
// a BatchError with an entry for each message: nil or what Publish would have returned for it. A message that is bad input
// or that the broker refuses fails alone; the others are sent.
//
// No message of the batch arrives, for the first time, before an earlier one: after a loss of the channel it goes on from
// the first message in doubt, so that later ones, too, may arrive twice but never first. When the broker closed the
// channel over a message, those in doubt are sent one by one until the guilty one is found. Messages of other callers may
// come in between.
//
// It ends early when ctx ends, when Timeout (for a ctx without deadline) passes without a confirmation, when a message
// stays in doubt because of ConfirmTimeout, and with FailFast at the first loss: what was in flight is then ErrUnknown, and
// the rest was not sent. The bodies must not change before it has returned.
func (p *Publisher) PublishBatch(ctx context.Context, msgs []Message) error {
	b := &batch{p: p, msgs: msgs, stop: leave.Stop(ctx), progress: time.Now()}
	b.began = b.progress
	switch {
	case !p.conn.calls.enter():
		return b.none(ctx, ErrClosed)
	case ctx.Err() != nil:
		p.conn.calls.leave()
		return b.none(ctx, ended(ctx))
	}
	defer p.conn.calls.leave()
	if !p.admit(0) {
		return b.none(ctx, ErrBusy)
	}
	defer p.dismiss(0)
	b.validate(ctx)
	b.run(ctx)
	return b.outcome(ctx)
}

// batch is one PublishBatch: a sequence of steps of one goroutine.
type batch struct {
	p     *Publisher
	began time.Time
	msgs  []Message
	errs  BatchError      // nil as long as nothing failed
	stop  <-chan struct{} // closed when nothing more is to be sent

	next   int       // the first of msgs that was not taken yet
	held   *parcel   // taken, and to be sent before anything else
	redo   []*parcel // in doubt, to be sent again before the next; in order
	flying []*parcel // sent, all on one channel; in order
	on     *confirms // that channel
	free   []*parcel // for use again

	progress time.Time // of the last confirmation
	over     error     // why nothing more is sent
}

// parcel is a message of a batch from its first sending to its outcome.
type parcel struct {
	Message
	index   int
	sent    time.Time
	history history
	flight  *flight
	tale    telemetry.Publishing
}

// none is the outcome of a batch of which nothing was sent.
func (b *batch) none(ctx context.Context, err error) error {
	b.over = err
	return b.outcome(ctx)
}

// outcome ends what was not sent, and is what PublishBatch returns.
func (b *batch) outcome(ctx context.Context) error {
	b.rest(ctx)
	if b.errs == nil {
		return nil
	}
	return b.errs
}

func (b *batch) fail(index int, err error) {
	if err == nil {
		return
	}
	if b.errs == nil {
		b.errs = make(BatchError, len(b.msgs))
	}
	b.errs[index] = err
}

func (b *batch) validate(ctx context.Context) {
	for i := range b.msgs {
		if err := b.p.validate(&b.msgs[i]); err != nil {
			b.unsent(ctx, i, err)
		}
	}
}

// run sends everything. Each round does one thing, and waits only when there is nothing else to do.
func (b *batch) run(ctx context.Context) {
	for {
		if len(b.flying) > 0 && isDone(b.flying[0].flight.confirm) {
			b.conclude(b.landed(ctx))
			continue
		}
		next := b.take(ctx)
		switch {
		case next != nil && b.trySend(next):
		case len(b.flying) > 0:
			if next != nil {
				b.held = next
			}
			b.conclude(b.landed(ctx))
		case next != nil:
			b.send(ctx, next)
		default:
			return
		}
	}
}

// take returns what has to be sent next, or nil when there is nothing more.
func (b *batch) take(ctx context.Context) *parcel {
	if b.over == nil && isClosed(b.stop) {
		b.over = errStopped
	}
	if b.over != nil {
		return nil
	}
	if next := b.held; next != nil {
		b.held = nil
		return next
	}
	if len(b.redo) > 0 {
		next := b.redo[0]
		b.redo = b.redo[1:]
		return next
	}
	for ; b.next < len(b.msgs); b.next++ {
		if b.errs != nil && b.errs[b.next] != nil {
			continue // bad input
		}
		next := b.parcel()
		*next = parcel{Message: b.msgs[b.next], index: b.next, sent: time.Now()}
		next.tale = b.p.conn.telemetry.Publish(ctx, next.Exchange, next.Key, next.Headers)
		next.history.tale = &next.tale
		b.p.complete(&next.Message, next.sent)
		b.p.describe(&next.Message, &next.tale)
		b.next++
		return next
	}
	return nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (b *batch) parcel() *parcel {
	if n := len(b.free); n > 0 {
		next := b.free[n-1]
		b.free = b.free[:n-1]
		return next
	}
	return new(parcel)
}

// trySend sends next if that needs no waiting, and keeps the order.
func (b *batch) trySend(next *parcel) bool {
	c := b.p.ready(&next.Message)
	if c == nil || next.history.refused != nil || next.history.ended > 0 || len(b.flying) > 0 && c != b.on {
		return false
	}
	f, err := c.trySend(&next.Message, !b.p.cfg.AllowUnroutable)
	switch {
	case f != nil:
		b.flies(next, c, f)
	case err != nil && err != errGone:
		b.done(next, next.fail(err))
	default:
		return false
	}
	return true
}

// send sends next, waiting for what it needs. Nothing is flying.
func (b *batch) send(ctx context.Context, next *parcel) {
	ctx, cancel := b.bound(ctx)
	defer cancel()
	ctx, sent := leave.ToSend(ctx)
	defer sent()
	s, err := b.p.dispatch(ctx, &next.Message, &next.history)
	if b.over = s.over; s.flight != nil {
		b.flies(next, s.confirms, s.flight)
		return
	}
	b.progress = time.Now()
	b.done(next, err)
}

// bound limits ctx by Timeout since the last confirmation, if it has no deadline itself.
func (b *batch) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	end := b.p.endOf(ctx, b.progress)
	if end.IsZero() {
		return ctx, func() {}
	}
	return context.WithDeadlineCause(ctx, end, errTooLate("Timeout", b.p.cfg.Timeout))
}

func (b *batch) flies(next *parcel, c *confirms, f *flight) {
	next.flight, next.sent = f, time.Now()
	b.on = c
	b.flying = append(b.flying, next)
	b.p.bytes.Add(int64(len(next.Body)))
}

// landed waits for the outcome of the first that is flying.
func (b *batch) landed(ctx context.Context) (*parcel, outcome) {
	first := b.flying[0]
	b.flying = b.flying[1:]
	confirmIn := b.p.cfg.ConfirmTimeout
	if confirmIn > 0 {
		confirmIn = max(confirmIn-time.Since(first.sent), 0)
	}
	o := b.p.await(ctx, b.on, first.flight, b.p.endOf(ctx, b.progress), confirmIn)
	if o.late == nil && o.loss == nil {
		b.progress = time.Now()
	}
	return first, o
}

// conclude notes the outcome of first. When its channel was lost, so is all that is flying; what is in doubt of that is
// sent again, before anything else.
func (b *batch) conclude(first *parcel, o outcome) {
	lost := b.judge(first, o)
	if o.loss != nil {
		for _, other := range b.flying {
			l, err := b.on.settle(other.flight) // all of them are through, see confirms.watch
			lost = append(lost, b.judge(other, outcome{err: err, loss: l})...)
		}
		b.flying = nil
	}
	if len(lost) == 0 {
		return
	}
	if b.held != nil { // it comes after what was flying
		lost = append(lost, b.held)
		b.held = nil
	}
	b.redo = append(lost, b.redo...)
}

// judge notes the outcome of x, or returns it when it has to be sent again.
func (b *batch) judge(x *parcel, o outcome) []*parcel {
	b.p.bytes.Add(-int64(len(x.Body)))
	v := b.p.conclude(&x.Message, b.on, &x.history, o)
	if v.again {
		return []*parcel{x}
	}
	if v.over != nil {
		b.over = v.over
	}
	b.done(x, v.err)
	return nil
}

func (b *batch) done(x *parcel, err error) {
	b.fail(x.index, err)
	tell(&x.tale, err)
	*x = parcel{}
	b.free = append(b.free, x)
}

// rest gives what was not sent, or not again, its error.
func (b *batch) rest(ctx context.Context) {
	if b.over == nil {
		return
	}
	reasons := []error{b.over}
	if b.on != nil {
		reasons = b.on.session.orBlocked(b.over)
	}
	if b.held != nil {
		b.redo = slices.Insert(b.redo, 0, b.held)
	}
	for _, x := range b.redo {
		err := x.Message.fail(reasons...)
		if doubt := x.history.doubt(); doubt != nil {
			err = x.Message.fail(append(append([]error{ErrUnknown}, reasons...), doubt)...)
		}
		b.done(x, err)
	}
	for i := b.next; i < len(b.msgs); i++ {
		if b.errs == nil || b.errs[i] == nil {
			b.unsent(ctx, i, reasons...)
		}
	}
}

// unsent is the end of a message that was not sent at all.
func (b *batch) unsent(ctx context.Context, index int, reasons ...error) {
	m := &b.msgs[index]
	err := m.fail(reasons...)
	b.fail(index, err)
	kind, _ := errorType(err)
	b.p.conn.telemetry.Unsent(ctx, m.Exchange, m.Key, kind, b.began)
}

// notSent is why the messages of a batch are not sent that come after one that stays in doubt. It is not ErrUnknown, and
// not the broker's error: nothing is wrong with them.
func notSent(why error) error {
	if errors.Is(why, context.DeadlineExceeded) || errors.Is(why, context.Canceled) {
		return fmt.Errorf("%w: %w", errNotSent, why)
	}
	return fmt.Errorf("%w, an earlier message is in doubt: %v", errNotSent, why)
}
