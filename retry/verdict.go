package retry

import (
	"errors"
	"math/rand/v2"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// verdict is what becomes of a message that is not done: its record says why it goes to the dead-letter queue, or, without
// a reason, it waits for delay and comes back. The attempt is then the next one, on a dead letter the last one made.
type verdict struct {
	record
	delay   time.Duration
	waiting bool   // it has not failed, but came too early
	id      string // MessageId of the copy, when the message has none
}

// pause is how long the message is not handled after its failure, in however many delays.
func (v verdict) pause() time.Duration {
	if v.notBefore.IsZero() {
		return v.delay
	}
	return v.notBefore.Sub(v.last)
}

// judge decides about first, whose handler has failed with err now. It is pure but for the jitter.
func (p Policy) judge(first amqp.Delivery, r record, err error, now time.Time) verdict {
	if r.first.IsZero() {
		r.first = now
	}
	r.last, r.err, r.notBefore = now, bounded(wordsOf(err), maxError), time.Time{}
	if reason := p.hopeless(r, err); reason != "" {
		r.reason = reason
		return verdict{record: r}
	}
	delay, until := p.delay(r.attempt, retryAfter(err), now)
	switch {
	case p.MaxAge > 0 && until.Sub(r.first) > p.MaxAge:
		r.reason = reasonTooOld
	case expired(first, r, until):
		r.reason = reasonExpired
	default:
		r.attempt++
		if until.After(now.Add(delay)) {
			r.notBefore = until
		}
		return verdict{record: r, delay: delay}
	}
	return verdict{record: r}
}

// hopeless returns why there is no further attempt, if so.
func (p Policy) hopeless(r record, err error) string {
	var panicked *panicked
	switch {
	case isPermanent(err) && isUndecodable(err):
		return reasonUndecodable
	case isPermanent(err):
		return reasonPermanent
	case p.MaxAttempts < 0 || r.attempt < p.MaxAttempts:
		return ""
	case errors.As(err, &panicked):
		return reasonPanic
	}
	return reasonExhausted
}

// delay returns how long a message waits after its attempt failed, and until when it waits in all: that may take several
// delays when asked is longer than the longest.
func (p Policy) delay(attempt int, asked time.Duration, now time.Time) (delay time.Duration, until time.Time) {
	if asked <= 0 {
		rungs := p.ladder(maxRungs)
		delay = p.jittered(rungs[min(attempt, len(rungs))-1])
		return delay, now.Add(delay)
	}
	delay, enough := p.atLeast(asked)
	if !enough {
		return delay, now.Add(asked)
	}
	return delay, now.Add(delay)
}

// jittered picks one of the steps of rung.
func (p Policy) jittered(rung time.Duration) time.Duration {
	if p.DelayedPlugin {
		more := time.Duration(float64(rung) * p.Jitter * rand.Float64())
		return min(rung+more.Truncate(time.Millisecond), maxDelay)
	}
	steps := p.steps(rung)
	return steps[rand.IntN(len(steps))]
}

// atLeast returns the shortest delay that is not shorter than d; or the longest, and that it is not enough.
func (p Policy) atLeast(d time.Duration) (delay time.Duration, enough bool) {
	if p.DelayedPlugin {
		whole := (min(d, maxDelay) + time.Millisecond - 1).Truncate(time.Millisecond)
		return whole, d <= maxDelay
	}
	for _, delay = range p.queues() {
		if delay >= d {
			return delay, true
		}
	}
	return delay, false
}

// onArrival returns what becomes of a message without a run of its handler, if its time has not come yet, or has passed.
func (p Policy) onArrival(first amqp.Delivery, r record, now time.Time) (v verdict, is bool) {
	if expired(first, r, now) {
		r.reason, r.attempt = reasonExpired, max(1, r.attempt-1)
		return verdict{record: r}, true
	}
	left := r.notBefore.Sub(now)
	if left <= 0 {
		return verdict{}, false
	}
	delay, _ := p.atLeast(left)
	return verdict{record: r, delay: delay, waiting: true}, delay > 0
}

// expired tells whether at the given time the message's own Expiration has passed, counted from its first failure: how long
// it had waited before that nobody knows.
func expired(first amqp.Delivery, r record, at time.Time) bool {
	if first.Expiration == "" || r.first.IsZero() {
		return false
	}
	life, ok := parseExpiration(first.Expiration)
	return ok && at.Sub(r.first) > life
}
