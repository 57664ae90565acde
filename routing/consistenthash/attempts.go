package consistenthash

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// attempts has a failed message tried again where it is. It leaves the waiting to the loop, which keeps a message that is answered
// "not now": so a shutdown does not wait for a pause, the consumer timeout is watched, and the state says why a partition stands.
//
// The loop of a partition handles one message at a time, so there is one count.
type attempts struct {
	cfg ConsumerConfig
	h   Handler
	log *slog.Logger

	mu      sync.Mutex
	channel int    // counts the channels: a handler that outlives its own must not touch the count of the next
	began   bool   // a message has come on this channel
	tag     uint64 // of the message in hand
	failed  int    // attempts at it
	waiting bool   // it is to be tried again
}

// reset begins anew, for a new channel.
func (a *attempts) reset() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.channel++
	a.began, a.tag, a.failed, a.waiting = false, 0, 0, false
}

// state reports whether a message has come on this channel, and whether one waits for another attempt.
func (a *attempts) state() (began, waiting bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.began, a.waiting
}

// handle is the loop's handler.
func (a *attempts) handle(ctx context.Context, d amqp.Delivery) error {
	channel, attempt := a.start(d.DeliveryTag)
	d.RoutingKey = keyOf(d)
	err := a.call(ctx, d, attempt)
	if err == nil || isPermanent(err) {
		a.finish(channel, 0, false)
		return err
	}
	if isNotNow(err) {
		a.finish(channel, 0, true)
		return err
	}
	if attempt >= a.cfg.MaxAttempts {
		a.finish(channel, 1, false)
		return fmt.Errorf("attempt %d of %d: %w", attempt, a.cfg.MaxAttempts, err)
	}
	a.finish(channel, 1, true)
	return &again{err: err, attempt: attempt, of: a.cfg.MaxAttempts, after: max(a.cfg.pause(attempt), retryAfter(err))}
}

// start notes that a message came, and returns which attempt at it this is.
func (a *attempts) start(tag uint64) (channel, attempt int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.began = true
	if tag != a.tag {
		a.tag, a.failed, a.waiting = tag, 0, false
	}
	return a.channel, a.failed + 1
}

func (a *attempts) finish(channel, failed int, waiting bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if channel == a.channel {
		a.failed += failed
		a.waiting = waiting
	}
}

// call calls the handler. A panic counts as an error; that of the last attempt is the loop's to catch.
func (a *attempts) call(ctx context.Context, d amqp.Delivery, attempt int) (err error) {
	if attempt < a.cfg.MaxAttempts {
		defer func() {
			if v := recover(); v != nil {
				err = fmt.Errorf("handler panicked: %v", v)
				a.log.Error("a handler panicked; its message is tried again", "message", d.MessageId, "attempt", attempt, "panic", v,
					"stack", string(debug.Stack()))
			}
		}()
	}
	return a.h(ctx, d)
}

// again is the answer for a message that is to be tried again in place.
type again struct {
	err         error
	attempt, of int
	after       time.Duration
}

func (e *again) Error() string {
	return fmt.Sprintf("attempt %d of %d failed: %v", e.attempt, e.of, e.err)
}
func (e *again) Unwrap() error             { return e.err }
func (e *again) NotNow() bool              { return true }
func (e *again) RetryAfter() time.Duration { return e.after }

func isPermanent(err error) bool {
	var p interface{ Permanent() bool }
	return errors.As(err, &p) && p.Permanent()
}

func isNotNow(err error) bool {
	var n interface{ NotNow() bool }
	return errors.As(err, &n) && n.NotNow()
}

func retryAfter(err error) time.Duration {
	var r interface{ RetryAfter() time.Duration }
	if errors.As(err, &r) {
		return r.RetryAfter()
	}
	return 0
}

// keyOf is the key under which a message was published.
func keyOf(d amqp.Delivery) string {
	if key, ok := d.Headers[keyHeader].(string); ok {
		return key
	}
	return d.RoutingKey // published by another program
}
