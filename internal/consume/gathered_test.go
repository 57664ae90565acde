package consume

import (
	"context"
	"sync"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// The link is lost while acknowledgements gather, in a handler behind others that have finished, and when they were sent and have
// not arrived: what was not acknowledged comes again, and nothing is missing or acknowledged unseen.
func TestCutInsideAPendingAckBatch(t *testing.T) {
	t.Parallel()
	const n = 170 // the last freeze ends before the last message
	for name, breaks := range map[string]func(ctx context.Context, proxy *testenv.FaultProxy, i int){
		"while they gather": func(ctx context.Context, proxy *testenv.FaultProxy, i int) {
			if i%20 == 10 {
				proxy.Cut()
			}
		},
		"on their way": func(ctx context.Context, proxy *testenv.FaultProxy, i int) {
			switch i % 60 {
			case 5:
				proxy.FreezeToBroker()
			case 45:
				proxy.Cut()
				proxy.Heal()
				<-ctx.Done() // else what is in the buffer is handled as far as the next freeze
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, amqp.Table{"x-queue-type": "quorum"})
			proxy := testenv.Proxy(t, r.broker.URL())
			r.link = newLink(t, proxy.URL())
			r.publish(0, n)
			var mu sync.Mutex // a handler of a lost channel may still be in here beside that of the next
			seen, again := map[string]int{}, 0
			see := func(id string) (first bool, number int) {
				mu.Lock()
				defer mu.Unlock()
				if seen[id]++; seen[id] > 1 {
					again++
				}
				return seen[id] == 1, len(seen)
			}
			cfg := r.config(func(ctx context.Context, d amqp.Delivery) error {
				if first, number := see(d.MessageId); first {
					breaks(ctx, proxy, number)
				}
				return nil
			})
			cfg.Prefetch = n + 1 // so that a frozen link has all it needs
			l := start(t, cfg)
			r.empty(0)
			require.NoError(t, l.stop())
			require.Len(t, seen, n)
			require.Positive(t, again, "no acknowledgement was lost")
		})
	}
}
