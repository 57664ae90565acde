package retry_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/retry"
)

// The plugin is not there: New says what to do, at once, and no connection that others use suffers.
func TestDelayedPluginIsMissing(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	before := s.broker.Connections(t, s.name)
	_, err := retry.New(s.within(patience), s.conn, s.queue.Name, retry.Policy{DelayedPlugin: true})
	require.ErrorContains(t, err, "DelayedPlugin: the broker has no exchange type x-delayed-message")
	require.ErrorContains(t, err, "rabbitmq-plugins enable rabbitmq_delayed_message_exchange")
	var topology *reconnect.TopologyError
	require.ErrorAs(t, err, &topology)
	testenv.Eventually(t, patience, func() bool {
		after := s.broker.Connections(t, s.name)
		return len(after) >= len(before) && len(before) > 0 && after[0].PeerPort == before[0].PeerPort
	}, "the connection is still the same")
	s.publish(1)
}
