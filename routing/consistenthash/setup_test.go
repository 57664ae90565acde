package consistenthash_test

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/routing/consistenthash"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// patience is how long a test waits for what must happen; far above what it takes.
const patience = 30 * time.Second

var quiet = testenv.Logger(io.Discard)

// setup is a set of partitions of its own and a Conn of its own.
type setup struct {
	t          *testing.T
	broker     *testenv.Broker
	conn       *reconnect.Conn
	name       string // prefix of the names of all Conns
	partitions consistenthash.Partitions
}

func newSetup(t *testing.T, p consistenthash.Partitions) *setup {
	t.Helper()
	return newSetupOn(t, testenv.Shared(t), p)
}

func newSetupOn(t *testing.T, broker *testenv.Broker, p consistenthash.Partitions) *setup {
	t.Helper()
	p.Name = testenv.Name(t, "parts")
	s := &setup{t: t, broker: broker, name: testenv.Name(t, "conn"), partitions: p}
	t.Cleanup(s.cleanUp) // after the Conns are closed
	s.conn = s.dial("main")
	return s
}

// cleanUp removes whatever a test, or a Resize in it, can have left behind.
func (s *setup) cleanUp() {
	conn := s.broker.Dial(s.t)
	ch, err := conn.Channel()
	require.NoError(s.t, err)
	for i := range 24 {
		_, err = ch.QueueDelete(s.partitions.Queue(i), false, false, false)
		require.NoError(s.t, err)
	}
	for _, suffix := range []string{".dlq", ".partitions", ".resizing"} {
		_, err = ch.QueueDelete(s.partitions.Name+suffix, false, false, false)
		require.NoError(s.t, err)
	}
	require.NoError(s.t, ch.ExchangeDelete(s.partitions.Name, false, false))
}

// dial opens a Conn with short pauses.
func (s *setup) dial(name string) *reconnect.Conn {
	return s.dialTo(s.broker.URL(), name, reconnect.Config{})
}

func (s *setup) dialTo(url, name string, cfg reconnect.Config) *reconnect.Conn {
	s.t.Helper()
	cfg.Name = s.name + "-" + name
	cfg.BackoffMin, cfg.BackoffMax = 10*time.Millisecond, 100*time.Millisecond
	cfg.Heartbeat = cmp.Or(cfg.Heartbeat, 10*time.Second) // a link that a slow machine costs us would bring messages twice
	cfg.Logger = cmp.Or(cfg.Logger, quiet)
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	conn, err := reconnect.Dial(ctx, url, cfg)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { require.NoError(s.t, conn.Close(context.Background())) })
	return conn
}

func (s *setup) publisher() *consistenthash.Publisher {
	s.t.Helper()
	p, err := consistenthash.NewPublisher(s.conn, s.partitions, reconnect.PublisherConfig{})
	require.NoError(s.t, err)
	return p
}

// message number n of a key.
func message(key string, n int) reconnect.Message {
	return reconnect.Message{Key: key, Publishing: amqp.Publishing{MessageId: fmt.Sprintf("%s/%d", key, n), Body: []byte(strconv.Itoa(n))}}
}

// publish sends messages first to last-1 of each key.
func (s *setup) publish(keys []string, first, last int) {
	s.t.Helper()
	var batch []reconnect.Message
	for n := first; n < last; n++ {
		for _, key := range keys {
			batch = append(batch, message(key, n))
		}
	}
	require.NoError(s.t, s.publisher().PublishBatch(s.t.Context(), batch))
}

func (s *setup) consumer(conn *reconnect.Conn, h consistenthash.Handler, cfg consistenthash.ConsumerConfig) *consistenthash.Consumer {
	s.t.Helper()
	c, err := consistenthash.NewConsumer(conn, s.partitions, h, cfg)
	require.NoError(s.t, err)
	return c
}

// start runs a consumer until the returned function is called, which waits for it and returns Run's error.
func (s *setup) start(conn *reconnect.Conn, h consistenthash.Handler, cfg consistenthash.ConsumerConfig) (stop func() error) {
	s.t.Helper()
	return run(s.t, s.consumer(conn, h, cfg))
}

func run(t *testing.T, c *consistenthash.Consumer) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
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
	case <-c.Ready():
	case err := <-done:
		require.NoError(t, err, "Run ended before it was ready")
	case <-time.After(patience):
		require.Fail(t, "consumer not ready in time")
	}
	return stop
}

// deadLettered waits until n messages stand in the dead-letter queue, where the broker brings them in its own time.
func (s *setup) deadLettered(n int) {
	s.t.Helper()
	dlq := s.partitions.DeadLetterQueue()
	testenv.Eventually(s.t, patience, func() bool { return s.depth(dlq) >= n }, "%d messages in %s", n, dlq)
	require.Equal(s.t, n, s.depth(dlq), "in %s", dlq)
}

// depth is the number of messages in a queue, unacknowledged ones included.
func (s *setup) depth(queue string) int {
	s.t.Helper()
	info := s.broker.Queue(s.t, queue)
	return info.Ready + info.Unacked
}

// settled waits until all partitions are empty.
func (s *setup) settled() {
	s.t.Helper()
	for i := range s.partitions.Count {
		testenv.Eventually(s.t, patience, func() bool { return s.depth(s.partitions.Queue(i)) == 0 }, "%s empty", s.partitions.Queue(i))
	}
}

func keys(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = "key-" + strconv.Itoa(i)
	}
	return out
}

// ledger writes down which message was begun when, for the first time.
type ledger struct {
	mu     sync.Mutex
	firsts map[string][]int       // numbers by key, in the order of their first start
	starts map[string]map[int]int // how often each
	again  int                    // starts that were not the first
}

func newLedger() *ledger {
	return &ledger{firsts: map[string][]int{}, starts: map[string]map[int]int{}}
}

// begin notes the start of a message and returns how often it has been begun now.
func (l *ledger) begin(d amqp.Delivery) int {
	n, err := strconv.Atoi(string(d.Body))
	if err != nil {
		panic(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.starts[d.RoutingKey] == nil {
		l.starts[d.RoutingKey] = map[int]int{}
	}
	l.starts[d.RoutingKey][n]++
	if l.starts[d.RoutingKey][n] == 1 {
		l.firsts[d.RoutingKey] = append(l.firsts[d.RoutingKey], n)
	} else {
		l.again++
	}
	return l.starts[d.RoutingKey][n]
}

func (l *ledger) count() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, of := range l.firsts {
		n += len(of)
	}
	return n
}

func (l *ledger) startsOf(key string, n int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.starts[key][n]
}

// inOrder checks that messages 0 to n-1 of every key were begun, and for the first time in their order.
func (l *ledger) inOrder(t *testing.T, keys []string, n int) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, key := range keys {
		require.Len(t, l.firsts[key], n, "messages of key %s", key)
		require.True(t, slices.IsSorted(l.firsts[key]), "key %s: %v", key, l.firsts[key])
	}
}

// work pretends to work for d, as a handler that obeys its context does.
func work(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
