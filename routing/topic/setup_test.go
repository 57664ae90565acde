package topic_test

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
	"github.com/warrenmq/warren/routing/topic"
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
	exchange topic.Exchange
}

func newSetup(t *testing.T) *setup {
	t.Helper()
	s := &setup{t: t, broker: testenv.Shared(t), name: testenv.Name(t, "conn"), exchange: topic.Exchange{Name: testenv.Name(t, "events")}}
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

func (s *setup) publisher() *topic.Publisher {
	s.t.Helper()
	p, err := topic.NewPublisher(s.conn, s.exchange, reconnect.PublisherConfig{})
	require.NoError(s.t, err)
	return p
}

// group is a durable subscription with a queue of this test's own.
func (s *setup) group(name string, patterns ...string) topic.Subscription {
	sub := topic.Subscription{Exchange: s.exchange, Queue: testenv.Name(s.t, name), Patterns: patterns}
	s.t.Cleanup(func() {
		s.broker.DeleteQueue(s.t, sub.Queue)
		s.broker.DeleteQueue(s.t, sub.DeadLetterQueue())
	})
	return sub
}

func (s *setup) subscribe(sub topic.Subscription, h topic.Handler) (stop func() error) {
	s.t.Helper()
	newSubscriber := topic.NewSubscriber
	if sub.Queue == "" {
		newSubscriber = topic.NewLiveSubscriber
	}
	subscriber, err := newSubscriber(s.conn, sub, h, topic.SubscriberConfig{})
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

// keys notes the routing keys that a handler was given.
type keys struct {
	mu  sync.Mutex
	got []string
}

func (k *keys) handle(_ context.Context, d amqp.Delivery) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.got = append(k.got, d.RoutingKey)
	return nil
}

func (k *keys) all() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]string(nil), k.got...)
}

// last waits for the key that was published last, and returns what came before.
func (k *keys) last(t *testing.T, key string) []string {
	t.Helper()
	testenv.Eventually(t, patience, func() bool { got := k.all(); return len(got) > 0 && got[len(got)-1] == key }, "the last key, %s", key)
	got := k.all()
	return got[:len(got)-1]
}
