package reconnect

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// An answer to a forged direct reply-to address makes the broker end the connection (541, up to RabbitMQ 4.1). It is not sent until its
// time is over: it fails after few losses, and the next one to that address at once; what others publish arrives.
func TestMessageThatEndsTheConnectionFailsAlone(t *testing.T) {
	t.Parallel()
	const forged = "amq.rabbitmq.reply-to.g1h2.x"
	for name, good := range map[string]int{"alone": 0, "beside others": 4} {
		for kind, publish := range map[string]func(ctx context.Context, p *pubTest, queue string) error{
			"Publish": func(ctx context.Context, p *pubTest, _ string) error {
				return p.p.Publish(ctx, "", forged, amqp.Publishing{})
			},
			"PublishBatch": func(ctx context.Context, p *pubTest, queue string) error {
				err := p.p.PublishBatch(ctx, []Message{{Key: queue}, {Key: forged}, {Key: queue}})
				failed, ok := err.(BatchError)
				if !ok {
					return err
				}
				require.NoError(p.t, failed[0])
				require.NoError(p.t, failed[2])
				return failed[1]
			},
		} {
			t.Run(name+", "+kind, func(t *testing.T) {
				t.Parallel()
				broker := testenv.Shared(t)
				c, log := dialed(t, broker.URL(), Config{})
				pub, err := c.NewPublisher(PublisherConfig{})
				require.NoError(t, err)
				raw, err := broker.Dial(t).Channel()
				require.NoError(t, err)
				p := &pubTest{t: t, broker: broker, conn: c, p: pub, raw: raw}
				queue := p.queue(nil)
				ctx, stop := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				var sent atomic.Int32
				for range good {
					wg.Go(func() {
						for ctx.Err() == nil {
							assert.NoError(t, pub.Publish(t.Context(), "", queue, amqp.Publishing{}))
							sent.Add(1)
						}
					})
				}
				testenv.Eventually(t, 20*time.Second, func() bool { return int(sent.Load()) >= 10*good }, "the others are at it")
				began := time.Now()
				err = publish(within(t, 20*time.Second), p, queue)
				took(t, began, 5*time.Second, "the forged one")
				losses := func() int { return strings.Count(log.String(), `msg="connection lost"`) }
				first, n, again := -1, 0, err
				// It is remembered for a second, then for two, and so on: a busy broker may take the first for the message in between.
				for try := 0; try < 4 && errors.Is(again, ErrUnknown); try++ {
					require.NoError(t, p.publish("", queue, "on the next connection"))
					if n = losses(); first < 0 {
						first = n
					}
					again = publish(within(t, 20*time.Second), p, queue)
				}
				stop()
				wg.Wait()
				for _, err := range []error{err, again} {
					require.Equal(t, amqp.InternalError, amqpCode(err), "%v", err)
				}
				require.ErrorIs(t, err, ErrUnknown)
				require.NotErrorIs(t, again, ErrUnknown, "it was not sent")
				require.NoError(t, p.publish("", queue, "still there"))
				require.LessOrEqual(t, first, 4)
				require.Equal(t, n, losses(), "the second costs nobody anything")
			})
		}
	}
}
