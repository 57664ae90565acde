package topic

import (
	"context"
	"fmt"
	"maps"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/codec"
)

// Mux hands each message of one queue to the handler of the pattern that its routing key matches. Of several the most
// specific one wins: they are compared from the left, word by word, and where they differ first a plain word wins over *,
// and * over #. So order.created.eu goes before order.created.*, order.*.eu, order.# and #, in this order. A Mux must not
// change while messages are handled.
type Mux map[string]Handler

// Handle is a Handler. A message whose key matches no pattern is a permanent error, and so ends in the dead-letter queue.
func (m Mux) Handle(ctx context.Context, d amqp.Delivery) error {
	best, found := "", false
	for pattern := range m {
		if Match(pattern, d.RoutingKey) && (!found || compare(pattern, best) < 0) {
			best, found = pattern, true
		}
	}
	h := m[best]
	if !found || h == nil {
		return fmt.Errorf("topic: message %q: %w", d.MessageId, codec.Permanent(fmt.Errorf("no handler for key %q", d.RoutingKey)))
	}
	return h(ctx, d)
}

// Patterns returns the patterns, sorted, for a Subscription.
func (m Mux) Patterns() []string { return slices.Sorted(maps.Keys(m)) }
