package retry

import (
	"context"
	"errors"
	"runtime/debug"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/consume"
)

// Handle returns h with retries, for a worker or subscriber of the Retrier's queue, or a loop of your own over the raw
// driver. h sees each message as it was first delivered, exchange, routing key, properties and headers, and InfoOf tells
// it which attempt this is. h must not change body or headers, of which the copy is made. The Retrier goes around everything
// else that looks at a delivery, such as a Mux: outside of it a message that comes back has the default exchange and the
// queue's name for its exchange and key. It goes around once: of two around each other the outer one never sees a failure,
// and gives up nothing.
//
// What is returned is nil when h has succeeded, or has failed and a copy of the message, for later or in the dead-letter
// queue, is confirmed: acknowledge. Otherwise an error with a method NotNow() bool: the message must stay, and be handled
// again. Our own workers see to that; a loop over the raw driver waits a moment, then calls d.Nack(false, true), or the
// function again with the same delivery, which then only sends the copy again. NotNow is the answer
//   - to an error of h that says so itself, and to one that it returned after ctx was cancelled: that is about the end of
//     the channel or of the process, not about the message;
//   - while a copy is not confirmed: an alarm, no connection, a queue that refuses, no right to publish;
//   - in an ordered loop (a single active consumer, a partition), where a copy would come back behind its successors;
//   - in a loop of another queue, without calling h: a copy would go to the wrong one. The worker's State says so.
//
// The one other error, a permanent one, is of a message of which no copy can be sent, such as a body above
// reconnect.Config.MaxBody, or in an ordered loop of h itself: d.Reject(false), the broker dead-letters it.
//
// A panic of h is a failure like any other, and logged with its stack. A nil h stays nil, for the worker's constructor to
// refuse.
func (r *Retrier) Handle(h Handler) Handler {
	if h == nil {
		return nil
	}
	return func(ctx context.Context, d amqp.Delivery) error {
		if err := r.elsewhere(ctx); err != nil {
			return err
		}
		if v, ok := r.doubts.take(&d); ok {
			return r.settle(ctx, d, v)
		}
		first, rec := r.read(d)
		if v, ok := r.policy.onArrival(first, rec, time.Now()); ok && !consume.Ordered(ctx) {
			return r.settle(ctx, d, v)
		}
		err := r.guard(d.MessageId, func() error { return h(ctx, rec.show(first)) })
		v, err := r.failed(ctx, first, rec, err)
		if err != nil || v == nil {
			return err
		}
		return r.settle(ctx, d, *v)
	}
}

// elsewhere refuses the loop of another queue. An ordered one gets no copies anyway.
func (r *Retrier) elsewhere(ctx context.Context) error {
	queue, ok := consume.QueueOf(ctx)
	if !ok || queue == r.queue || consume.Ordered(ctx) {
		return nil
	}
	return &notNow{why: "the Retrier of queue \"" + r.queue + "\" wraps a handler of queue \"" + queue + "\""}
}

// failed judges the answer of first's handler: done (nil, nil), an error to return at once, or a verdict to carry out.
func (r *Retrier) failed(ctx context.Context, first amqp.Delivery, rec record, err error) (*verdict, error) {
	switch {
	case err == nil, isNotNow(err):
		return nil, err
	case consume.Ordered(ctx) && isPermanent(err):
		return nil, err
	case consume.Ordered(ctx):
		return nil, &notNow{"the queue is ordered, a message is not taken out of its place", err}
	case errors.Is(ctx.Err(), context.Canceled):
		return nil, &notNow{"the handler was cut off", err}
	}
	v := r.policy.judge(first, rec, err, time.Now())
	return &v, nil
}

// guard calls h, and makes an error of its panic.
func (r *Retrier) guard(id string, h func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			p := &panicked{v, debug.Stack()}
			r.log.Error("handler panicked", "message", id, "panic", v, "stack", string(p.stack))
			err = p
		}
	}()
	return h()
}
