package workqueue

import (
	"context"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/codec"
)

// Handler handles one message. Its return value settles it: nil acknowledges; an error or a panic dead-letters, at the
// first time; an error with a method NotNow() bool that returns true keeps the message and calls the handler again after
// a pause (RetryAfter() time.Duration, else 1 s and growing), without anything being counted as long as the worker keeps
// it: for up to 5/6 of the ConsumerTimeout, then it is handed back. The Ack, Nack and Reject of the delivery do nothing
// and return an error.
//
// ctx ends when the handler's time is up, when the grace period of a shutdown is over, and, with the reason as its cause,
// when the message's channel was lost: the broker then gives the message to another worker, whatever the handler returns.
// An error that a handler returns after the grace period, unless it is permanent, hands the message back: it says more
// about the shutdown than about the message.
type Handler = func(ctx context.Context, d amqp.Delivery) error

// BatchHandler handles several messages, in the order of the queue. nil acknowledges all of them; a reconnect.BatchError,
// with an entry for each, settles each by its entry; any other error, or a panic, dead-letters all; NotNow holds as for a
// Handler. Batches begin small after a start or a loss and grow with success, as Prefetch does.
type BatchHandler = func(ctx context.Context, ds []amqp.Delivery) error

// JSON returns a Handler that decodes the body into a T and hands it to h. A body that is empty, is null where T has no
// nil, or has something behind the value, is a permanent error, as is one that does not fit T. A handler that needs more
// of the delivery, such as its MessageId, is a Handler that decodes the body itself.
func JSON[T any](h func(ctx context.Context, v T) error) Handler {
	if h == nil {
		return nil // which the constructors refuse
	}
	return func(ctx context.Context, d amqp.Delivery) error {
		v, err := codec.JSON[T](d.Body)
		if err != nil {
			return fmt.Errorf("workqueue: message %q: %w", d.MessageId, err)
		}
		return h(ctx, v)
	}
}
