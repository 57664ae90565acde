package reconnect

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// newSlowTest publishes over a network that carries so many bytes a second.
func newSlowTest(t *testing.T, rate int) (p *pubTest, queue string, log *logText) {
	t.Helper()
	broker := testenv.Shared(t)
	proxy := testenv.Proxy(t, broker.URL())
	raw, err := broker.Dial(t).Channel()
	require.NoError(t, err)
	conn, log := dialed(t, proxy.URL(), Config{})
	pub, err := conn.NewPublisher(PublisherConfig{})
	require.NoError(t, err)
	p = &pubTest{t: t, broker: broker, conn: conn, p: pub, raw: raw}
	queue = p.queue(nil)
	require.NoError(t, p.publish("", queue, "before"))
	proxy.Slow(rate)
	return p, queue, log
}

// On a slow network large messages take their time. Nothing is stalled, and no connection is given up.
func TestSlowNetworkIsNoStall(t *testing.T) {
	t.Parallel()
	large := amqp.Publishing{Body: make([]byte, 4<<20)}

	t.Run("one large message", func(t *testing.T) {
		t.Parallel()
		p, queue, log := newSlowTest(t, 500_000)
		require.NoError(t, p.p.Publish(within(t, 40*time.Second), "", queue, large))
		requireUntroubled(t, log)
	})
	t.Run("many large messages", func(t *testing.T) {
		t.Parallel()
		p, queue, log := newSlowTest(t, 500_000)
		concurrently(10, func(int) {
			assert.NoError(t, p.p.Publish(within(t, 40*time.Second), "", queue, amqp.Publishing{Body: large.Body[:512<<10]}))
		})
		require.Equal(t, 1+10, p.broker.Queue(t, queue).Ready)
		requireUntroubled(t, log)
	})
	t.Run("a large one beside small ones", func(t *testing.T) {
		t.Parallel()
		p, queue, log := newSlowTest(t, 500_000)
		ctx, halt := context.WithCancel(t.Context())
		defer halt()
		var small sync.WaitGroup
		for range 12 {
			other := p.queue(nil)
			small.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					assert.NoError(t, p.p.Publish(within(t, 40*time.Second), "", other, plainText(fmt.Sprint(i))))
				}
			})
		}
		require.NoError(t, p.p.Publish(within(t, 40*time.Second), "", queue, large))
		halt()
		small.Wait()
		requireUntroubled(t, log)
	})
}

func requireUntroubled(t *testing.T, log *logText) {
	t.Helper()
	require.NotContains(t, log.String(), "connection lost")
	require.NotContains(t, log.String(), "no confirmations")
}

// Who is impatient is told ErrUnknown, and that is all: nothing counts as stalled, and those who share the connection
// notice nothing.
func TestImpatienceIsNoStall(t *testing.T) {
	for _, timeout := range []time.Duration{1, time.Millisecond, 20 * time.Millisecond} {
		t.Run(timeout.String(), func(t *testing.T) {
			t.Parallel()
			broker := testenv.Shared(t)
			conn, log := dialed(t, broker.URL(), Config{})
			patient, err := conn.NewPublisher(PublisherConfig{})
			require.NoError(t, err)
			impatient, err := conn.NewPublisher(PublisherConfig{ConfirmTimeout: timeout})
			require.NoError(t, err)
			raw, err := broker.Dial(t).Channel()
			require.NoError(t, err)
			p := &pubTest{t: t, broker: broker, conn: conn, p: patient, raw: raw}
			queue := p.queue(amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum})

			ctx, halt := context.WithTimeout(t.Context(), time.Second)
			defer halt()
			confirmed := make([]int, 40)
			concurrently(60, func(i int) {
				for n := 0; n == 0 || ctx.Err() == nil; n++ { // once at least, however late it begins
					if i >= len(confirmed) {
						_ = impatient.Publish(ctx, "", queue, plainText("impatient"))
						continue
					}
					assert.NoError(t, p.publish("", queue, fmt.Sprint(i, n)))
					confirmed[i]++
				}
			})
			for _, pub := range []*Publisher{patient, impatient} {
				testenv.Eventually(t, 10*time.Second, func() bool {
					through, _ := pub.current.Load().progress()
					return through
				}, "everything has arrived")
			}
			require.NotContains(t, log.String(), "connection lost")
			arrived := p.bodies(queue)
			for i, n := range confirmed {
				require.Positive(t, n)
				for n := range n {
					require.Equal(t, 1, arrived[fmt.Sprint(i, n)])
				}
			}
		})
	}
}
