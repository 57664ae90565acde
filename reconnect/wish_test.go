package reconnect

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/apart"
	"github.com/warrenmq/warren/internal/testenv"
)

// A function that asks for it has a connection of its own from the start. A message that cannot be read closes that one
// alone, the function is told, and nobody is suspected of anything.
func TestSuperviseApart(t *testing.T) {
	t.Parallel()
	broker := testenv.Shared(t)
	c, log := dialed(t, broker.URL(), Config{})
	bad := testenv.Name(t, "bad")
	t.Cleanup(func() { broker.DeleteQueue(t, bad) })
	topology := Topology{Queues: []Queue{{Name: bad, Type: "classic"}}}
	require.NoError(t, c.Declare(t.Context(), topology))
	raw, err := broker.Dial(t).Channel()
	require.NoError(t, err)
	deep := amqp.Table{}
	for range 60 {
		deep = amqp.Table{"in": deep}
	}
	require.NoError(t, raw.Publish("", bad, true, false, amqp.Publishing{Headers: deep}))
	testenv.Eventually(t, 30*time.Second, func() bool { return broker.Queue(t, bad).Ready == 1 }, "published")

	var told atomic.Int32
	ctx := apart.With(t.Context(), &apart.Wish{Unreadable: func(error) { told.Add(1) }})
	runs := int32(0)
	err = c.Supervise(ctx, "looker", Topology{}, func(ctx context.Context, ch *amqp.Channel) error {
		require.Equal(t, runs, told.Load(), "told before it is run again")
		var conns []testenv.ConnInfo
		testenv.Eventually(t, 10*time.Second, func() bool { // the broker may take a while to notice the end of one
			conns = broker.Connections(t, c.Config().Name+"/consuming")
			return len(conns) == 1
		}, "no link, and no connection of earlier runs")
		require.Equal(t, c.Config().Name+"/consuming/apart", conns[0].Name)
		sock, err := apart.Dial(ctx)
		require.NoError(t, err)
		require.NoError(t, sock.Close())
		if runs++; runs == 4 {
			return nil
		}
		_, _, err = ch.Get(bad, false)
		return err
	})
	require.NoError(t, err)
	require.NotContains(t, log.String(), "holds a message that cannot be read")
	testenv.Eventually(t, 10*time.Second, func() bool { return len(broker.Connections(t, c.Config().Name+"/consuming")) == 0 }, "its connection is closed")
	_, err = apart.Dial(t.Context())
	require.Error(t, err)
}
