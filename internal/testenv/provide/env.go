package provide

import "context"

// StartRabbitMQ starts a broker with the management API, for many tests.
func StartRabbitMQ(ctx context.Context) (*RabbitMQ, error) {
	return startLocalRabbit(ctx, sharedPlugins)
}

// StartNode starts a broker that is quick to stop and to boot, for faults that hit the whole node. It has no
// management API.
func StartNode(ctx context.Context) (*RabbitMQ, error) { return startLocalRabbit(ctx, nodePlugins) }
