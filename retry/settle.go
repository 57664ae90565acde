package retry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/wire"
	"github.com/warrenmq/warren/reconnect"
)

const (
	// copyTimeout bounds one attempt to have a copy confirmed; then whoever consumes keeps the message, shows why, and asks
	// again. It is as long as a Publisher waits for a confirmation, so that an alarm no longer than that sends no copy twice.
	copyTimeout = 30 * time.Second
	// lateTimeout is the same where the handler has used up its own time.
	lateTimeout = 5 * time.Second
)

// copied is a copy and where it goes.
type copied struct {
	exchange, key string
	msg           amqp.Publishing
	delayed       bool // by the plugin
}

// settle carries out v on d: it returns nil once the copy is confirmed.
func (r *Retrier) settle(ctx context.Context, d amqp.Delivery, v verdict) error {
	if d.MessageId == "" && v.id == "" {
		v.id = newID() // the same, however often it is sent
	}
	first, _ := restore(d, r.trusts(&d))
	err := r.store(ctx, first, &v)
	switch {
	case err == nil:
		r.report(first.MessageId, v)
		return nil
	case uncopyable(err):
		return &lost{err}
	}
	r.doubts.keep(&d, v)
	return &notNow{"the copy is not confirmed", err}
}

// store publishes the copy of first that v asks for. One whose headers are too large or cannot be sent goes to the dead-letter
// queue without those that are not ours.
func (r *Retrier) store(ctx context.Context, first amqp.Delivery, v *verdict) error {
	ctx, cancel := copyContext(ctx)
	defer cancel()
	err := r.send(ctx, r.copy(first, *v))
	var fault *wire.Error
	if errors.As(err, &fault) && len(first.Headers) > 0 {
		if v.reason == "" {
			v.reason = reasonOversized
			v.attempt = max(1, v.attempt-1) // the last one made
		}
		v.cut = namesOf(first.Headers)
		first.Headers = nil
		err = r.send(ctx, r.copy(first, *v))
	}
	return err
}

// copyContext bounds ctx by copyTimeout. Where the handler's own time is over there is a little more for the copy.
func copyContext(ctx context.Context) (context.Context, context.CancelFunc) {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return context.WithTimeout(context.WithoutCancel(ctx), lateTimeout)
	}
	return context.WithTimeout(ctx, copyTimeout)
}

// copy makes the copy of first that v asks for.
func (r *Retrier) copy(first amqp.Delivery, v verdict) copied {
	c := copied{exchange: r.policy.DeadLetterExchange, key: deadLetterQueue(r.queue)}
	if v.reason != "" {
		v.consumer = r.consumer + " (" + first.ConsumerTag + ")"
		v.notBefore = time.Time{}
	}
	c.msg = copyOf(first, v.record)
	if v.id != "" {
		c.msg.MessageId = v.id
	}
	if v.reason == "" {
		r.address(&c, v.delay)
	}
	return c
}

// address sends c into the delay.
func (r *Retrier) address(c *copied, delay time.Duration) {
	if r.policy.DelayedPlugin {
		c.exchange, c.key, c.delayed = delayedExchange(r.queue), r.queue, true
		c.msg.Headers = with(c.msg.Headers, delayHeader, delay.Milliseconds())
		return
	}
	c.key = delayQueue(r.queue, delay)
	if c.msg.Priority > maxDelayedPriority {
		c.msg.Headers = with(c.msg.Headers, priorityHeader, int64(c.msg.Priority))
		c.msg.Priority = maxDelayedPriority
	}
}

// send publishes c. Where no queue takes it, somebody has deleted ours: they are declared again, and it is sent once more.
func (r *Retrier) send(ctx context.Context, c copied) error {
	pub := r.pub
	if c.delayed {
		pub = r.blind
	}
	before := r.declared.Load()
	err := pub.Publish(ctx, c.exchange, c.key, c.msg)
	if !isGone(err) {
		return err
	}
	if declaring := r.declareAgain(ctx, before); declaring != nil {
		return errors.Join(err, declaring)
	}
	return pub.Publish(ctx, c.exchange, c.key, c.msg)
}

// isGone tells whether err says that a queue or exchange does not exist.
func isGone(err error) bool {
	var returned *reconnect.ReturnedError
	var refused *amqp.Error
	return errors.As(err, &returned) || errors.As(err, &refused) && refused.Code == amqp.NotFound
}

// declareAgain declares our topology, unless that was done since before: of many messages that miss a queue one does.
func (r *Retrier) declareAgain(ctx context.Context, before uint64) error {
	select {
	case r.declaring <- struct{}{}:
		defer func() { <-r.declaring }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if r.declared.Load() != before {
		return nil
	}
	if err := r.conn.Declare(ctx, r.topology); err != nil {
		return r.policy.explain(r.queue, err)
	}
	r.declared.Add(1)
	r.log.Warn("a delay or dead-letter queue was missing: all are declared again")
	return nil
}

// uncopyable tells whether err, of a copy, is about the message itself, so that it will always come back.
func uncopyable(err error) bool {
	var fault *wire.Error
	if errors.As(err, &fault) {
		return true
	}
	var refused *amqp.Error
	var topology *reconnect.TopologyError
	return errors.As(err, &refused) && refused.Code == amqp.PreconditionFailed &&
		!errors.As(err, &topology) && !errors.Is(err, reconnect.ErrUnknown)
}

// lost is the error of a message of which no copy can be sent.
type lost struct{ err error }

func (e *lost) Error() string   { return "retry: no copy can be sent: " + e.err.Error() }
func (e *lost) Unwrap() error   { return e.err }
func (e *lost) Permanent() bool { return true }

func (r *Retrier) report(id string, v verdict) {
	if v.waiting {
		return
	}
	if v.reason != "" {
		r.log.Error("message dead-lettered", "message", id, "reason", v.reason, "attempts", v.attempt, "error", v.err)
		return
	}
	r.log.Warn("message failed, to be tried again", "message", id, "attempts", v.attempt-1, "after", v.pause(), "error", v.err)
}

// namesOf returns the names of t, sorted, as far as they fit into a header.
func namesOf(t amqp.Table) (names []string) {
	sum := 0
	all := make([]string, 0, len(t))
	for name := range t {
		all = append(all, name)
	}
	slices.Sort(all)
	for i, name := range all {
		if sum += len(name); i >= maxCutNames || sum > maxCutBytes {
			return append(names, fmt.Sprintf("and %d more", len(all)-i))
		}
		names = append(names, name)
	}
	return names
}

func newID() string {
	id, err := uuid.NewV7()
	if err != nil {
		return uuid.NewString()
	}
	return id.String()
}
