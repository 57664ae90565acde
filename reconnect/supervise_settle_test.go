package reconnect

import (
	"context"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// A function that settles by hand returns after the end of its consumer and a Qos, as the documentation of Supervise says. Of what it has
// acknowledged nothing comes again then; without these two, on a quorum queue, some does about two times in three.
func TestSettledByHandBeforeReturning(t *testing.T) {
	t.Parallel()
	const n = 200
	broker := testenv.Shared(t)
	c, _ := dialed(t, broker.URL(), Config{})
	p, err := c.NewPublisher(PublisherConfig{})
	require.NoError(t, err)
	for _, kind := range []string{"quorum", "classic"} {
		queue := testenv.Name(t, kind)
		t.Cleanup(func() { broker.DeleteQueue(t, queue) })
		top := Topology{Queues: []Queue{{Name: queue, Type: kind}}}
		require.NoError(t, c.Declare(within(t, 20*time.Second), top))
		rounds := func(proof bool) (came int) {
			for range 5 {
				msgs := make([]Message, n)
				for i := range msgs {
					msgs[i].Key = queue
				}
				require.NoError(t, p.PublishBatch(within(t, 20*time.Second), msgs))
				require.NoError(t, c.Supervise(within(t, 20*time.Second), "by hand", top, func(ctx context.Context, ch *amqp.Channel) error {
					return settleByHand(ctx, ch, queue, n, proof)
				}))
				var q testenv.QueueInfo
				testenv.Eventually(t, 20*time.Second, func() bool { q = broker.Queue(t, queue); return q.Unacked == 0 }, "what comes again is back")
				if q.Ready > 0 {
					came++
				}
				ch, err := c.Channel(t.Context())
				require.NoError(t, err)
				_, err = ch.QueuePurge(queue, false)
				require.NoError(t, err)
				require.NoError(t, ch.Close())
			}
			return came
		}
		t.Logf("%s: in %d of 5 rounds messages came again without the two calls", kind, rounds(false))
		require.Zero(t, rounds(true), kind)
	}
}

func settleByHand(ctx context.Context, ch *amqp.Channel, queue string, n int, proof bool) error {
	if err := ch.Qos(n, 0, false); err != nil {
		return err
	}
	deliveries, err := ch.Consume(queue, "hand", false, false, false, false, nil)
	if err != nil {
		return err
	}
	got := make([]amqp.Delivery, 0, n)
	for len(got) < n {
		select {
		case d, ok := <-deliveries:
			if !ok {
				return amqp.ErrClosed
			}
			got = append(got, d)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	for _, d := range got {
		if err := d.Ack(false); err != nil {
			return err
		}
	}
	if !proof {
		return nil
	}
	if err := ch.Cancel("hand", false); err != nil {
		return err
	}
	return ch.Qos(n, 0, false)
}
