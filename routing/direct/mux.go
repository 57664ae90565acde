package direct

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/codec"
)

// Mux hands each message of one queue to the handler of its routing key. It must not change while messages are handled.
type Mux map[string]Handler

// Handle is a Handler. A message whose key has no handler is a permanent error, and so ends in the dead-letter queue.
func (m Mux) Handle(ctx context.Context, d amqp.Delivery) error {
	h := m[d.RoutingKey]
	if h == nil {
		return fmt.Errorf("direct: message %q: %w", d.MessageId, codec.Permanent(fmt.Errorf("no handler for key %q", d.RoutingKey)))
	}
	return h(ctx, d)
}

// Keys returns the keys, sorted, for a Subscription.
func (m Mux) Keys() []string { return slices.Sorted(maps.Keys(m)) }

// checkKey refuses what can only be a mistake.
func checkKey(key string) error {
	if key == "" {
		return errors.New("empty")
	}
	return nil
}
