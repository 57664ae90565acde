package consistenthash

import (
	"context"
	"io"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
)

// The mark may be there twice, since a publish is sent again when its connection is lost: in a partition that stays, the second one
// would be somebody's message.
func TestNoMarkIsLeftBehind(t *testing.T) {
	t.Parallel()
	for name, n := range map[string]int{"few messages": 3, "the second one in the next batch": moveWindow - 1, "full batches": 2*moveWindow - 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := testenv.Shared(t)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			conn, err := reconnect.Dial(ctx, broker.URL(), reconnect.Config{Logger: testenv.Logger(io.Discard)})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, conn.Close(context.Background())) })
			from, to := testenv.Name(t, "from"), testenv.Name(t, "to")
			for _, queue := range []string{from, to} {
				t.Cleanup(func() { broker.DeleteQueue(t, queue) })
				require.NoError(t, conn.Declare(ctx, reconnect.Topology{Queues: []reconnect.Queue{{Name: queue}}}))
			}
			r := &resize{conn: conn}
			r.pub, err = conn.NewPublisher(reconnect.PublisherConfig{})
			require.NoError(t, err)
			msgs := make([]reconnect.Message, n, n+1)
			for i := range msgs {
				msgs[i].Key = from
			}
			msgs = append(msgs, reconnect.Message{Key: from, Publishing: amqp.Publishing{Headers: amqp.Table{endHeader: "mark"}}})
			require.NoError(t, r.pub.PublishBatch(ctx, msgs))
			moved := 0
			require.NoError(t, conn.Supervise(ctx, "pump", reconnect.Topology{}, func(ctx context.Context, ch *amqp.Channel) error {
				return r.pump(ctx, ch, from, "mark", func(d amqp.Delivery) reconnect.Message { return reconnect.Message{Key: to} }, &moved)
			}))
			require.Equal(t, n, moved)
			testenv.Eventually(t, 20*time.Second, func() bool { return broker.Queue(t, to).Ready == n }, "all are moved")
			q, err := conn.Inspect(ctx, from)
			require.NoError(t, err)
			require.Zero(t, q.Messages, "left behind")
		})
	}
}
