package exchange_test

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/pubsub"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/routing/consistenthash"
	"github.com/warrenmq/warren/routing/direct"
	"github.com/warrenmq/warren/routing/topic"
	"github.com/warrenmq/warren/workqueue"
)

// TestTopologiesVerify: before it is declared all of a pattern's topology is missing, and nothing of it is refused by RabbitMQ 4.3;
// afterwards it agrees.
func TestTopologiesVerify(t *testing.T) {
	b := testenv.Shared(t)
	name := func(what string) string { return testenv.Name(t, what) }
	for what, top := range map[string]reconnect.Topology{
		"workqueue": workqueue.Queue{Name: name("q"), MaxLength: 10, TTL: time.Hour}.Topology(),
		"single":    workqueue.Queue{Name: name("q"), SingleActiveConsumer: true, DeadLetterExchange: name("dlx")}.Topology(),
		"classic":   workqueue.Queue{Name: name("q"), Classic: true}.Topology(),
		"priority":  workqueue.Queue{Name: name("q"), MaxPriority: 5}.Topology(),
		"pubsub":    pubsub.Subscription{Exchange: pubsub.Exchange{Name: name("x")}, Queue: name("q")}.Topology(),
		"direct":    direct.Subscription{Exchange: direct.Exchange{Name: name("x")}, Queue: name("q"), Keys: []string{"a", "b"}}.Topology(),
		"topic": topic.Subscription{Exchange: topic.Exchange{Name: name("x"), Alternate: name("alt")}, Queue: name("q"), Patterns: []string{"#.a.#"},
			DeadLetterExchange: name("dlx")}.Topology(),
		"partitions": consistenthash.Partitions{Name: name("p"), Count: 3}.Topology(),
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			conn, err := reconnect.Dial(ctx, b.URL(), reconnect.Config{Logger: testenv.Logger(io.Discard)})
			require.NoError(t, err)
			defer func() { require.NoError(t, conn.Close(context.Background())) }()
			missing, ok := conn.Verify(ctx, top).(interface{ Unwrap() []error })
			require.True(t, ok)
			require.Len(t, missing.Unwrap(), len(top.Exchanges)+len(top.Queues), "%v", missing)
			require.NoError(t, conn.Declare(ctx, top))
			require.NoError(t, conn.Verify(ctx, top))
			conn.Forget(top)
			ch, err := b.Dial(t).Channel()
			require.NoError(t, err)
			for _, q := range top.Queues {
				b.DeleteQueue(t, q.Name)
			}
			for _, e := range top.Exchanges {
				require.NoError(t, ch.ExchangeDelete(e.Name, false, false))
			}
		})
	}
}
