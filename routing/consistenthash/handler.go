package consistenthash

import (
	"context"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/codec"
)

// Handler handles one message; no other message of its partition is handled meanwhile. Its return value settles it: nil
// acknowledges; an error or a panic is tried again in place, and dead-lettered after MaxAttempts, at once if it has a method
// Permanent() bool that returns true; an error with a method NotNow() bool that returns true keeps the message and calls the
// handler again after a pause (RetryAfter() time.Duration, else 1 s and growing), with no attempt counted. The partition
// waits meanwhile. The Ack, Nack and Reject of the delivery do nothing and return an error.
//
// The delivery's RoutingKey is the key that was published, whoever did the hashing.
//
// ctx ends when the time of the attempt is up, when the grace period of a shutdown is over, and, with the reason as its
// cause, when the message's channel was lost: the broker then gives the message to another instance, which may start it while this
// handler is still inside.
type Handler = func(ctx context.Context, d amqp.Delivery) error

// JSON returns a Handler that decodes the body into a T and hands it to h. A body that is empty, is null where T has no
// nil, or has something behind the value, is a permanent error, as is one that does not fit T.
func JSON[T any](h func(ctx context.Context, v T) error) Handler {
	return func(ctx context.Context, d amqp.Delivery) error {
		v, err := codec.JSON[T](d.Body)
		if err != nil {
			return fmt.Errorf("consistenthash: message %q: %w", d.MessageId, err)
		}
		return h(ctx, v)
	}
}
