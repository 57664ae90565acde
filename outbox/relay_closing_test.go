package outbox

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/routing/consistenthash"
	"github.com/warrenmq/warren/routing/direct"
	"github.com/warrenmq/warren/routing/topic"
)

// An idle relay ends with its Conn, whatever stands before the *reconnect.Publisher but does not hide its Closing.
func TestClosing(t *testing.T) {
	t.Parallel()
	type embedding struct{ *reconnect.Publisher }
	for name, publisherOf := range map[string]func(*reconnect.Conn, string) (Publisher, error){
		"direct": func(conn *reconnect.Conn, name string) (Publisher, error) {
			return direct.NewPublisher(conn, direct.Exchange{Name: name}, reconnect.PublisherConfig{})
		},
		"topic": func(conn *reconnect.Conn, name string) (Publisher, error) {
			return topic.NewPublisher(conn, topic.Exchange{Name: name}, reconnect.PublisherConfig{})
		},
		"consistenthash": func(conn *reconnect.Conn, name string) (Publisher, error) {
			return consistenthash.NewPublisher(conn, consistenthash.Partitions{Name: name, Count: 2}, reconnect.PublisherConfig{})
		},
		"embedding": func(conn *reconnect.Conn, _ string) (Publisher, error) { return embedding{publisher(t, conn)}, nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, exchange := dialed(t, testenv.Shared(t))
			pub, err := publisherOf(conn, exchange)
			require.NoError(t, err)
			r := relay(t, newBox(t, Config{}), pub, RelayConfig{})
			testenv.Eventually(t, patience, func() bool { return leading(r) }, "it leads, and has nothing to send")
			require.NoError(t, conn.Close(t.Context()))
			require.Less(t, r.endsWithin(t, patience), atOnce)
			require.ErrorIs(t, r.err, reconnect.ErrClosed)
		})
	}
}

// hiding is a publisher that says nothing of its end.
type hiding struct{ inner *reconnect.Publisher }

func (h hiding) PublishBatch(ctx context.Context, msgs []reconnect.Message) error {
	return h.inner.PublishBatch(ctx, msgs)
}

// Without Closing it is the next message that tells.
func TestWithoutClosing(t *testing.T) {
	t.Parallel()
	conn, name := dialed(t, testenv.Shared(t))
	box := newBox(t, Config{})
	r := relay(t, box, hiding{publisher(t, conn)}, RelayConfig{})
	testenv.Eventually(t, patience, func() bool { return leading(r) }, "it leads")
	require.NoError(t, conn.Close(t.Context()))
	storeNumbered(t, box, name, 0, 1)
	r.endsWithin(t, patience)
	require.ErrorIs(t, r.err, reconnect.ErrClosed)
	require.EqualValues(t, 1, waiting(t, box))
	require.Empty(t, retries(t, box))
}
