package pubsub_test

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/pubsub"
	"github.com/warrenmq/warren/reconnect"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// patience is how long a test waits for what must happen; far above what it takes.
const patience = 30 * time.Second

// quiet keeps the expected losses out of the tests' output.
var quiet = testenv.Logger(io.Discard)

// setup is an exchange of its own and a Conn of its own.
type setup struct {
	t        *testing.T
	broker   *testenv.Broker
	url      string
	name     string // the Conn's, by which the broker's side of it is found
	conn     *reconnect.Conn
	exchange pubsub.Exchange
}

func newSetup(t *testing.T) *setup {
	t.Helper()
	broker := testenv.Shared(t)
	return newSetupOn(t, broker, broker.URL())
}

func newSetupOn(t *testing.T, broker *testenv.Broker, url string) *setup {
	t.Helper()
	s := &setup{t: t, broker: broker, url: url, name: testenv.Name(t, "conn"), exchange: pubsub.Exchange{Name: testenv.Name(t, "event")}}
	s.conn = s.dial(reconnect.Config{Name: s.name})
	s.deleteExchange(s.exchange.Name)
	return s
}

// deleteExchange deletes an exchange when the test ends.
func (s *setup) deleteExchange(name string) {
	s.t.Cleanup(func() {
		ch, err := s.broker.Dial(s.t).Channel()
		require.NoError(s.t, err)
		require.NoError(s.t, ch.ExchangeDelete(name, false, false))
	})
}

// dial opens a Conn whose pauses are short: the tests cut it more often than a link that fails should be dialed.
func (s *setup) dial(cfg reconnect.Config) *reconnect.Conn {
	s.t.Helper()
	cfg.BackoffMin, cfg.BackoffMax = 10*time.Millisecond, 100*time.Millisecond
	cfg.Heartbeat = cmp.Or(cfg.Heartbeat, 2*time.Second)
	cfg.Logger = cmp.Or(cfg.Logger, quiet)
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	conn, err := reconnect.Dial(ctx, s.url, cfg)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { require.NoError(s.t, conn.Close(context.Background())) })
	return conn
}

// group is a durable subscription with a queue of this test's own.
func (s *setup) group(name string) pubsub.Subscription {
	sub := pubsub.Subscription{Exchange: s.exchange, Queue: testenv.Name(s.t, name)}
	s.t.Cleanup(func() {
		s.broker.DeleteQueue(s.t, sub.Queue)
		s.broker.DeleteQueue(s.t, sub.DeadLetterQueue())
	})
	return sub
}

func (s *setup) live() pubsub.Subscription { return pubsub.Subscription{Exchange: s.exchange} }

// publisher is on a Conn of its own, so that cutting the subscriber's leaves it alone.
func (s *setup) publisher() *pubsub.Publisher {
	s.t.Helper()
	p, err := pubsub.NewPublisher(s.dial(reconnect.Config{Name: testenv.Name(s.t, "publisher")}), s.exchange, reconnect.PublisherConfig{})
	require.NoError(s.t, err)
	return p
}

func message(i int) amqp.Publishing {
	return amqp.Publishing{MessageId: strconv.Itoa(i), Body: []byte("event " + strconv.Itoa(i))}
}

// publish sends messages from to to-1.
func publish(t *testing.T, p *pubsub.Publisher, from, to int) {
	t.Helper()
	var batch []amqp.Publishing
	for i := from; i < to; i++ {
		batch = append(batch, message(i))
	}
	require.NoError(t, p.PublishBatch(t.Context(), batch))
}

// subscribe runs a durable subscriber until the test ends, or stop is called, which returns Run's error.
func (s *setup) subscribe(conn *reconnect.Conn, sub pubsub.Subscription, h pubsub.Handler, cfg pubsub.SubscriberConfig) (stop func() error) {
	s.t.Helper()
	subscriber, err := pubsub.NewSubscriber(conn, sub, h, cfg)
	require.NoError(s.t, err)
	return run(s.t, subscriber)
}

func (s *setup) listen(conn *reconnect.Conn, sub pubsub.Subscription, h pubsub.Handler, cfg pubsub.SubscriberConfig) (stop func() error) {
	s.t.Helper()
	subscriber, err := pubsub.NewLiveSubscriber(conn, sub, h, cfg)
	require.NoError(s.t, err)
	return run(s.t, subscriber)
}

func run(t *testing.T, s *pubsub.Subscriber) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(patience):
			return fmt.Errorf("Run did not return within %v", patience)
		}
	})
	t.Cleanup(func() { _ = stop() })
	select {
	case <-s.Ready():
	case err := <-done:
		require.NoError(t, err, "Run ended before it was ready")
		require.Fail(t, "Run ended before it was ready")
	case <-time.After(patience):
		require.Fail(t, "subscriber not ready in time")
	}
	return stop
}

// inbox notes what a handler was given, and gaps, in order.
type inbox struct {
	mu   sync.Mutex
	got  []string
	gaps []gap
}

// gap is one that was reported, and how many messages had been handled before.
type gap struct {
	from, to time.Time
	after    int
}

func (b *inbox) handle(_ context.Context, d amqp.Delivery) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.got = append(b.got, d.MessageId)
	return nil
}

func (b *inbox) onGap(from, to time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gaps = append(b.gaps, gap{from, to, len(b.got)})
}

func (b *inbox) all() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.got...)
}

func (b *inbox) reported() []gap {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]gap(nil), b.gaps...)
}

func (b *inbox) distinct() int {
	seen := map[string]bool{}
	for _, id := range b.all() {
		seen[id] = true
	}
	return len(seen)
}

// reaches waits until n different messages were handled.
func (b *inbox) reaches(t *testing.T, n int) {
	t.Helper()
	testenv.Eventually(t, patience, func() bool { return b.distinct() >= n }, "%d messages handled", n)
}

func ids(from, to int) (out []string) {
	for i := from; i < to; i++ {
		out = append(out, strconv.Itoa(i))
	}
	return out
}

// queues are the names of the broker's queues that begin with a prefix, with what is wrong about transient and shared ones.
func (s *setup) queues(prefix string) (names []string) {
	s.t.Helper()
	s.broker.Eval(s.t, &names, `[Name || Q <- rabbit_amqqueue:list(), {resource, _, queue, Name} <- [amqqueue:get_name(Q)],
		binary:longest_common_prefix([Name, <<"`+prefix+`">>]) =:= `+strconv.Itoa(len(prefix))+`].`)
	return names
}

// bindings are the keys with which queues that begin with a prefix are bound to an exchange, as "queue key".
func (s *setup) bindings(exchange string) (out []string) {
	s.t.Helper()
	s.broker.Eval(s.t, &out, `[<<Queue/binary, " ", Key/binary>> || {binding, _, Key, {resource, _, queue, Queue}, _} <-
		rabbit_binding:list_for_source({resource, <<"/">>, exchange, <<"`+exchange+`">>})].`)
	return out
}
