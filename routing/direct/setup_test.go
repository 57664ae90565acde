package direct_test

import (
	"context"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/routing/direct"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const patience = 30 * time.Second

var quiet = testenv.Logger(io.Discard)

// setup is an exchange of its own and a Conn of its own.
type setup struct {
	t        *testing.T
	broker   *testenv.Broker
	name     string
	conn     *reconnect.Conn
	exchange direct.Exchange
}

func newSetup(t *testing.T) *setup {
	t.Helper()
	s := &setup{t: t, broker: testenv.Shared(t), name: testenv.Name(t, "conn"), exchange: direct.Exchange{Name: testenv.Name(t, "orders")}}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var err error
	s.conn, err = reconnect.Dial(ctx, s.broker.URL(), reconnect.Config{Name: s.name, Logger: quiet,
		BackoffMin: 10 * time.Millisecond, BackoffMax: 100 * time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.conn.Close(context.Background())) })
	t.Cleanup(func() {
		ch, err := s.broker.Dial(t).Channel()
		require.NoError(t, err)
		require.NoError(t, ch.ExchangeDelete(s.exchange.Name, false, false))
	})
	return s
}

func (s *setup) publisher() *direct.Publisher {
	s.t.Helper()
	p, err := direct.NewPublisher(s.conn, s.exchange, reconnect.PublisherConfig{})
	require.NoError(s.t, err)
	return p
}

// group is a durable subscription with a queue of this test's own.
func (s *setup) group(name string, keys ...string) direct.Subscription {
	sub := direct.Subscription{Exchange: s.exchange, Queue: testenv.Name(s.t, name), Keys: keys}
	s.t.Cleanup(func() {
		s.broker.DeleteQueue(s.t, sub.Queue)
		s.broker.DeleteQueue(s.t, sub.DeadLetterQueue())
	})
	return sub
}

func (s *setup) subscribe(sub direct.Subscription, h direct.Handler) (stop func() error) {
	s.t.Helper()
	newSubscriber := direct.NewSubscriber
	if sub.Queue == "" {
		newSubscriber = direct.NewLiveSubscriber
	}
	subscriber, err := newSubscriber(s.conn, sub, h, direct.SubscriberConfig{})
	require.NoError(s.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- subscriber.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(patience):
			return fmt.Errorf("Run did not return within %v", patience)
		}
	})
	s.t.Cleanup(func() { require.NoError(s.t, stop()) })
	select {
	case <-subscriber.Ready():
	case err := <-done:
		require.FailNow(s.t, "Run ended before it was ready", "%v", err)
	case <-time.After(patience):
		require.FailNow(s.t, "not ready in time")
	}
	return stop
}

// ports are this test's connections of a role as the broker lists them, by their own ends.
func (s *setup) ports(role string) (ports []int) {
	s.t.Helper()
	for _, c := range s.broker.Connections(s.t, s.name+role) {
		ports = append(ports, c.PeerPort)
	}
	return ports
}

// inbox notes the routing keys that a handler was given.
type inbox struct {
	mu  sync.Mutex
	got []string
}

func (k *inbox) handle(_ context.Context, d amqp.Delivery) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.got = append(k.got, d.RoutingKey)
	return nil
}

func (k *inbox) all() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]string(nil), k.got...)
}

// last waits for the key that was published last, and returns what came before.
func (k *inbox) last(t *testing.T, key string) []string {
	t.Helper()
	testenv.Eventually(t, patience, func() bool { got := k.all(); return len(got) > 0 && got[len(got)-1] == key }, "the last key, %s", key)
	got := k.all()
	return got[:len(got)-1]
}
