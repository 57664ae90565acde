package reconnect

import (
	"context"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// Timeout bounds all of a Publish together: what the wait for a channel took, the wait for the confirmation has no more.
func TestTimeoutBoundsTheWholePublish(t *testing.T) {
	t.Parallel()
	for name, publish := range map[string]func(p *Publisher, queue string) error{
		"Publish": func(p *Publisher, queue string) error {
			return p.Publish(context.Background(), "", queue, amqp.Publishing{})
		},
		"PublishBatch": func(p *Publisher, queue string) error {
			return p.PublishBatch(context.Background(), []Message{{Key: queue}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const wait, timeout = 2 * time.Second, 4 * time.Second
			broker := testenv.Shared(t)
			proxy := testenv.Proxy(t, broker.URL())
			p := newPubTestAt(t, broker, proxy.URL(), Config{}, PublisherConfig{Timeout: timeout})
			queue := p.queue(nil)
			proxy.FreezeToClient() // so the channel takes two seconds
			time.AfterFunc(wait, proxy.Heal)
			resume := broker.StallQueue(t, queue) // and the confirmation does not come
			began := time.Now()
			err := publish(p.p, queue)
			elapsed := time.Since(began)
			resume()
			require.ErrorIs(t, err, ErrUnknown)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.GreaterOrEqual(t, elapsed, timeout)
			require.Less(t, elapsed, timeout+wait, "the confirmation was not given a time of its own")
			testenv.Eventually(t, 20*time.Second, func() bool { return broker.Queue(t, queue).Ready == 1 }, "it was sent")
		})
	}
}
