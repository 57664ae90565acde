package testenv_test

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

func TestCluster(t *testing.T) {
	var c *testenv.NodeCluster
	timed(t, "start", func() { c = testenv.Cluster(t) })
	require.Len(t, c.URLs(), 3)
	require.Len(t, c.Hosts(), 3)

	ch := channel(t, c.Broker(0).Dial(t))
	queue := testenv.Name(t, "q")
	_, err := ch.QueueDeclare(queue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	require.NoError(t, err)
	require.NoError(t, ch.Confirm(false))
	leader := c.AwaitLeader(queue)
	publish(t, ch, queue, nil)

	timed(t, "kill the leader", func() { c.Kill(leader) })
	var next int
	timed(t, "next leader", func() { next = c.AwaitLeader(queue) })
	require.NotEqual(t, leader, next)
	holdsOne(t, c.Broker(next), queue)

	timed(t, "kill another one", func() { c.Kill(next) })
	timed(t, "no majority", func() { c.AwaitNoMajority(queue) })
	require.Equal(t, 3-leader-next, c.Up())
	timed(t, "start", func() { c.Start(leader) })
	timed(t, "majority", func() { c.AwaitLeader(queue) })
	holdsOne(t, c.Broker(leader), queue)
}
