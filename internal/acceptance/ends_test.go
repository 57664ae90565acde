package acceptance

import (
	"context"
	"io"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/pubsub"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/rpc"
)

// idlers are the consumers of all patterns, with nothing to do.
func idlers() map[string]func(v *victim, conn *reconnect.Conn) runner {
	all := map[string]func(v *victim, conn *reconnect.Conn) runner{
		"rpc": func(v *victim, conn *reconnect.Conn) runner {
			s, err := rpc.NewServer(conn, v.name, func(context.Context, amqp.Delivery) (amqp.Publishing, error) { return amqp.Publishing{}, nil },
				rpc.ServerConfig{})
			require.NoError(v.t, err)
			return s
		},
		"live pubsub": func(v *victim, conn *reconnect.Conn) runner {
			s, err := pubsub.NewLiveSubscriber(conn, pubsub.Subscription{Exchange: pubsub.Exchange{Name: v.name}}, pubsub.JSON(v.handle),
				pubsub.SubscriberConfig{})
			require.NoError(v.t, err)
			return s
		},
	}
	for name, start := range targets {
		all[name] = start
	}
	return all
}

// No Run hangs: while it has nothing to do, it ends with its Conn, and when it is asked to also while the broker is away.
// Package outbox has the same of its Relay, which has no Conn.
func TestEveryRunEnds(t *testing.T) {
	const atOnce = 3 * time.Second // a heartbeat, or a dial, would be 10
	for name, start := range idlers() {
		for how, end := range map[string]func(t *testing.T, conn *reconnect.Conn, proxy *testenv.FaultProxy, cancel func()) error{
			"its Conn is closed": func(t *testing.T, conn *reconnect.Conn, _ *testenv.FaultProxy, _ func()) error {
				require.NoError(t, conn.Close(t.Context()))
				return reconnect.ErrClosed
			},
			"the broker is away": func(_ *testing.T, _ *reconnect.Conn, proxy *testenv.FaultProxy, cancel func()) error {
				proxy.Refuse()
				proxy.Cut()
				cancel()
				return nil
			},
			"its Conn is closed while the broker is away": func(t *testing.T, conn *reconnect.Conn, proxy *testenv.FaultProxy, _ func()) error {
				proxy.Refuse()
				proxy.Cut()
				require.NoError(t, conn.Close(t.Context()))
				return reconnect.ErrClosed
			},
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				b := testenv.Shared(t)
				v := &victim{t: t, broker: b, name: testenv.Name(t, "q"), log: &syncBuffer{}, seen: map[int]int{}}
				proxy := testenv.Proxy(t, b.URL())
				conn, err := reconnect.Dial(t.Context(), proxy.URL(), reconnect.Config{Name: testenv.Name(t, "conn"), Logger: testenv.Logger(io.Discard)})
				require.NoError(t, err)
				t.Cleanup(func() {
					_ = conn.Close(context.Background())
					operator, err := reconnect.Dial(context.Background(), b.URL(), reconnect.Config{Logger: testenv.Logger(io.Discard)})
					require.NoError(t, err)
					cleanUp(t, operator, v.name)
					require.NoError(t, operator.Close(context.Background()))
				})
				r := start(v, conn)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				ended := make(chan error, 1)
				go func() { ended <- r.Run(ctx) }()
				select {
				case <-r.Ready():
				case err := <-ended:
					require.NoError(t, err, "before it was ready")
				}
				began := time.Now()
				want := end(t, conn, proxy, cancel)
				select {
				case err := <-ended:
					require.ErrorIs(t, err, want)
				case <-time.After(atOnce):
					t.Fatalf("Run goes on after %v", atOnce)
				}
				t.Logf("it took %v", time.Since(began))
			})
		}
	}
}
