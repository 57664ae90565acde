package retry_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/retry"
)

// The plugin is not there: New says what to do, at once, and no connection that others use suffers.
func TestDelayedPluginIsMissing(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	before := s.links()
	require.NotEmpty(t, before)
	_, err := retry.New(s.within(patience), s.conn, s.queue.Name, retry.Policy{DelayedPlugin: true})
	require.ErrorContains(t, err, "DelayedPlugin: the broker has no exchange type x-delayed-message")
	require.ErrorContains(t, err, "rabbitmq-plugins enable rabbitmq_delayed_message_exchange")
	var topology *reconnect.TopologyError
	require.ErrorAs(t, err, &topology)
	require.Subset(t, s.links(), before, "the connections are still the same")
	s.publish(1)
}
