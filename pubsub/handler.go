package pubsub

import (
	"context"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/codec"
)

// Handler handles one message. Its return value settles it: nil acknowledges; an error or a panic dead-letters (a live
// subscription drops); an error with a method NotNow() bool that returns true keeps the message and calls the handler
// again after a pause (RetryAfter() time.Duration, else 1 s and growing), with no attempt counted. The Ack, Nack and
// Reject of the delivery do nothing and return an error.
//
// ctx ends when the handler's time is up, when the grace period of a shutdown is over, and, with the reason as its cause,
// when the message's channel was lost: the message then comes again, but for a live subscription whose connection is gone.
type Handler = func(ctx context.Context, d amqp.Delivery) error

// JSON returns a Handler that decodes the body into a T and hands it to h. A body that is empty, is null where T has no
// nil, or has something behind the value, is a permanent error, as is one that does not fit T.
func JSON[T any](h func(ctx context.Context, v T) error) Handler {
	return func(ctx context.Context, d amqp.Delivery) error {
		v, err := codec.JSON[T](d.Body)
		if err != nil {
			return fmt.Errorf("pubsub: message %q: %w", d.MessageId, err)
		}
		return h(ctx, v)
	}
}
