package reconnect

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/telemetry"
)

// outcome is what became of a message that was sent.
type outcome struct {
	err  error // the broker's word: nil, *ReturnedError, ErrRefused
	late error // no word: this ended the waiting
	loss *loss // no word: the channel was lost
}

// history is what became of earlier attempts of one call.
type history struct {
	lost    error // one was lost with the connection: it may have arrived
	refused *loss // one was on a channel that the broker closed over a message: this one, or another
	ended   int   // so many were on a connection that the broker ended over something that was sent on it
	alone   int   // of these, so many times nothing else was in doubt on its channel
	tale    *telemetry.Publishing
}

// doubt returns why an earlier attempt may have arrived, nil when none may.
func (h *history) doubt() error {
	if h.lost != nil {
		return h.lost
	}
	if h.refused != nil {
		return h.refused.why
	}
	return nil
}

// await waits for the confirmation of f, which was sent on c, until ctx ends, or Timeout does at end (if that is not zero),
// or ConfirmTimeout does after confirmIn (if that is not negative).
func (p *Publisher) await(ctx context.Context, c *confirms, f *flight, end time.Time, confirmIn time.Duration) outcome {
	t, field, after := p.timer(end, confirmIn)
	var late error
	select {
	case <-f.confirm.Done():
	case <-ctx.Done():
		late = ended(ctx)
	case <-timeOf(t):
		late = errTooLate(field, after)
		if field == "Timeout" {
			late = fmt.Errorf("%w: %w", context.DeadlineExceeded, late)
		}
	}
	p.release(t)
	if late != nil && !isDone(f.confirm) {
		c.abandon(f)
		return outcome{late: late}
	}
	l, err := c.settle(f)
	return outcome{err: err, loss: l}
}

func isDone(confirm *amqp.DeferredConfirmation) bool {
	select {
	case <-confirm.Done():
		return true
	default:
		return false
	}
}

// timer returns a timer for the earlier of the two limits and which one that is, or nil when there is none.
func (p *Publisher) timer(end time.Time, confirmIn time.Duration) (t *time.Timer, field string, after time.Duration) {
	wait := confirmIn
	field, after = "ConfirmTimeout", p.cfg.ConfirmTimeout
	if !end.IsZero() {
		if left := max(time.Until(end), 0); wait < 0 || left <= wait {
			wait, field, after = left, "Timeout", p.cfg.Timeout
		}
	}
	if wait < 0 {
		return nil, "", 0
	}
	t = p.timers.Get().(*time.Timer)
	t.Reset(wait)
	return t, field, after
}

func (p *Publisher) release(t *time.Timer) {
	if t != nil {
		t.Stop()
		p.timers.Put(t)
	}
}

func timeOf(t *time.Timer) <-chan time.Time {
	if t == nil {
		return nil
	}
	return t.C
}

// verdict is what follows from an outcome.
type verdict struct {
	again bool  // send it again
	err   error // otherwise: what the caller is told
	over  error // and why nothing that must not overtake it may be sent; nil when there is no doubt about it
}

// conclude judges o, the outcome of m on c.
func (p *Publisher) conclude(m *Message, c *confirms, h *history, o outcome) verdict {
	switch l := o.loss; {
	case o.late != nil:
		return verdict{err: m.fail(c.session.orBlocked(ErrUnknown, o.late)...), over: notSent(o.late)}
	case l == nil:
		return verdict{err: m.failAfter(h, o.err)}
	case l.refusal != nil && l.inDoubt == 1:
		return verdict{err: p.guilty(m, h, l.refusal)}
	case p.cfg.FailFast:
		return verdict{err: m.fail(ErrUnknown, l.why), over: notSent(l.why)}
	case l.refusal != nil:
		h.refused = l
	case endedBy(l.why) && h.endedAgain(l):
		return verdict{err: p.ender(m, l)}
	default:
		h.lost = l.why
	}
	h.tale.Again(o.loss.why)
	return verdict{again: true}
}

// endedAgain takes note that a message was in flight on a connection that the broker ended. After the first time it is sent on a
// channel where nothing else is. What was alone on its channel three times is not sent again: it would end the connection of all
// others until its time is over. Twice it may have been a supervised function, which is apart by the third time.
func (h *history) endedAgain(l *loss) bool {
	h.ended++
	if l.inDoubt == 1 {
		h.alone++
	}
	return h.alone > 2
}

// ender is the end of a message over which the broker ended the connection, in all likelihood.
func (p *Publisher) ender(m *Message, l *loss) error {
	var e *amqp.Error
	if errors.As(l.why, &e) && m.Exchange == "" && strings.HasPrefix(m.Key, directReply) {
		p.conn.refused.refuse(m.Exchange, m.Key, len(m.Body), e) // anywhere else, others with that key may be good
	}
	return m.fail(ErrUnknown, l.why)
}

// directReply begins the addresses of direct reply-to. One that was made up ends the connection, up to RabbitMQ 4.1.
const directReply = "amq.rabbitmq.reply-to."

// guilty is the end of a message over which the broker closed a channel.
func (p *Publisher) guilty(m *Message, h *history, refusal *amqp.Error) error {
	if refusal.Code == amqp.NotFound {
		p.conn.exchanges.forget(m.Exchange)
	}
	p.conn.refused.refuse(m.Exchange, m.Key, len(m.Body), refusal)
	fault := m.fault(refusal)
	fault.ownFault = true
	if h.lost != nil || h.refused != nil && !h.refused.isOver(m, refusal) {
		fault.parts = []error{ErrUnknown, refusal, h.doubt()}
	}
	return fault
}

// isOver reports whether the channel was lost because of m, given that m was now refused with refusal: then its attempt
// on that channel was refused as well. What is wrong with a message itself (406) was wrong with it before. An exchange may
// have been deleted after it had taken m and before it refused another one.
func (l *loss) isOver(m *Message, refusal *amqp.Error) bool {
	if l.refusal.Code != refusal.Code {
		return false
	}
	if refusal.Code == amqp.PreconditionFailed || refusal.Code == amqp.ContentTooLarge {
		return true
	}
	same := 0
	for _, s := range l.suspects {
		if s.exchange == m.Exchange {
			same++
		}
	}
	return same == 1
}

// failAfter returns err, the last word on m, for its caller; when it is an error and an earlier attempt is in doubt, so is
// the whole.
func (m *Message) failAfter(h *history, err error) error {
	switch doubt := h.doubt(); {
	case err == nil:
		return nil
	case doubt != nil:
		return m.fail(ErrUnknown, err, doubt)
	}
	return m.fail(err)
}

// notSent returns err, because of which m was not sent (again), for its caller. s may be nil.
func (m *Message) notSent(ctx context.Context, s *session, h *history, err error) error {
	parts := []error{err}
	if ctx.Err() != nil && s != nil {
		parts = s.orBlocked(err)
	}
	if doubt := h.doubt(); doubt != nil {
		parts = append(append([]error{ErrUnknown}, parts...), doubt)
	}
	var refusal *amqp.Error
	fault := m.fault(parts...)
	fault.ownFault = errors.As(err, &refusal) && refusal.Server
	return fault
}

// orBlocked adds ErrBlocked when the broker blocks publishers now.
func (s *session) orBlocked(parts ...error) []error {
	if until, reason := s.blocking(); until != nil && !errors.Is(errors.Join(parts...), ErrBlocked) {
		parts = append(parts, blockedBy(reason))
	}
	return parts
}

func blockedBy(reason string) error { return fmt.Errorf("%w: %s", ErrBlocked, reason) }

// passAlarm waits until the broker does not block publishers; without wait it returns ErrBlocked instead.
func (s *session) passAlarm(ctx context.Context, wait bool) error {
	for {
		until, reason := s.blocking()
		switch {
		case until == nil:
			return nil
		case !wait:
			return blockedBy(reason)
		}
		select {
		case <-until:
		case <-s.lost():
			return errGone
		case <-ctx.Done():
			return ended(ctx)
		}
	}
}
