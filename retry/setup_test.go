package retry_test

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/retry"
	"github.com/warrenmq/warren/workqueue"
)

// TestMain lets more tests run at once than there are processors: nearly all of them wait, each for its own queues.
func TestMain(m *testing.M) {
	if target := os.Getenv(victimEnv); target != "" {
		os.Exit(runVictim(target))
	}
	_ = flag.Set("test.parallel", "12") // -parallel still has the last word
	testenv.Main(m)
}

// patience is how long a test waits for what must happen; far above what it takes.
const patience = 30 * time.Second

var quiet = testenv.Logger(io.Discard)

// quick is a policy with short delays: 50, 100 and 200 ms.
var quick = retry.Policy{MaxAttempts: 4, InitialDelay: 50 * time.Millisecond, Multiplier: 2}

// setup is a work queue of its own, a Conn of its own, and what is needed to look at both.
type setup struct {
	t      *testing.T
	broker *testenv.Broker
	url    string
	conn   *reconnect.Conn
	name   string // the Conn's, by which the broker's side of it is found
	queue  workqueue.Queue
}

// newSetup makes a setup on the run's shared broker, its queue declared.
func newSetup(t *testing.T) *setup {
	t.Helper()
	broker := testenv.Shared(t)
	return newSetupOn(t, broker, broker.URL(), workqueue.Queue{})
}

func newSetupOn(t *testing.T, broker *testenv.Broker, url string, q workqueue.Queue) *setup {
	t.Helper()
	q.Name = testenv.Name(t, "jobs")
	s := &setup{t: t, broker: broker, url: url, name: testenv.Name(t, "conn"), queue: q}
	s.conn = s.dial(s.name)
	require.NoError(t, s.conn.Declare(s.within(patience), q.Topology()))
	t.Cleanup(func() {
		broker.DeleteQueue(t, q.Name)
		broker.DeleteQueue(t, q.DeadLetterQueue())
	})
	return s
}

// dial opens a further Conn. Its pauses are short, since the tests cut it much more often than a link that fails should be
// dialed.
func (s *setup) dial(name string) *reconnect.Conn {
	s.t.Helper()
	return s.dialWith(reconnect.Config{Name: name})
}

func (s *setup) dialWith(cfg reconnect.Config) *reconnect.Conn {
	s.t.Helper()
	cfg.BackoffMin, cfg.BackoffMax = 10*time.Millisecond, 100*time.Millisecond
	cfg.Heartbeat = cmp.Or(cfg.Heartbeat, 4*time.Second) // a busy machine stops us for seconds
	cfg.Logger = cmp.Or(cfg.Logger, quiet)
	conn, err := reconnect.Dial(s.within(patience), s.url, cfg)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { require.NoError(s.t, conn.Close(context.Background())) })
	return conn
}

// retrier makes a Retrier of the queue, and sees to it that its queues are gone after the test.
func (s *setup) retrier(p retry.Policy) *retry.Retrier {
	s.t.Helper()
	return s.retrierOn(s.conn, p)
}

func (s *setup) retrierOn(conn *reconnect.Conn, p retry.Policy) *retry.Retrier {
	s.t.Helper()
	s.cleanUp(p)
	r, err := retry.New(s.within(patience), conn, s.queue.Name, p)
	require.NoError(s.t, err)
	return r
}

func (s *setup) cleanUp(p retry.Policy) {
	s.t.Cleanup(func() {
		for _, q := range p.Topology(s.queue.Name).Queues {
			s.broker.DeleteQueue(s.t, q.Name)
		}
	})
}

// start runs a worker until the returned function is called, which waits for it and returns Run's error.
func (s *setup) start(h workqueue.Handler, cfg workqueue.WorkerConfig) (stop func() error) {
	s.t.Helper()
	return s.startOn(s.conn, h, cfg)
}

func (s *setup) startOn(conn *reconnect.Conn, h workqueue.Handler, cfg workqueue.WorkerConfig) (stop func() error) {
	s.t.Helper()
	w, err := workqueue.NewWorker(conn, s.queue, h, cfg)
	require.NoError(s.t, err)
	return run(s.t, w)
}

// runner is what has a Run.
type runner interface {
	Run(context.Context) error
	Ready() <-chan struct{}
}

func run(t *testing.T, w runner) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
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
	case <-w.Ready():
	case err := <-done:
		require.NoError(t, err, "Run ended before it was ready")
	case <-time.After(patience):
		require.Fail(t, "not ready in time")
	}
	return stop
}

// publish sends messages with the ids 0 to n-1 into the queue.
func (s *setup) publish(n int) {
	s.t.Helper()
	msgs := make([]amqp.Publishing, n)
	for i := range msgs {
		msgs[i] = amqp.Publishing{MessageId: strconv.Itoa(i), Body: []byte("job " + strconv.Itoa(i))}
	}
	s.send(msgs...)
}

// send puts messages into the queue through the default exchange.
func (s *setup) send(msgs ...amqp.Publishing) {
	s.t.Helper()
	batch := make([]reconnect.Message, len(msgs))
	for i, msg := range msgs {
		batch[i] = reconnect.Message{Key: s.queue.Name, Publishing: msg}
	}
	pub, err := s.conn.NewPublisher(reconnect.PublisherConfig{Shared: true})
	require.NoError(s.t, err)
	require.NoError(s.t, pub.PublishBatch(s.within(patience), batch))
}

// connections are those of the setup's Conns, as the broker lists them: one that was closed a moment ago may still be there.
func (s *setup) connections() map[int]string {
	s.t.Helper()
	of := map[int]string{}
	for _, c := range s.broker.Connections(s.t, s.name) {
		of[c.PeerPort] = c.Name
	}
	return of
}

// links are the connections that stay, without those that were made for one call.
func (s *setup) links() map[int]string {
	s.t.Helper()
	of := s.connections()
	maps.DeleteFunc(of, func(_ int, name string) bool { return strings.HasSuffix(name, "/apart") })
	return of
}

// raw publishes past the library, and waits for the broker's word that it is there.
func (s *setup) raw(exchange, key string, msg amqp.Publishing) {
	s.t.Helper()
	rawOn(s.t, s.broker.Dial(s.t), exchange, key, msg)
}

func rawOn(t *testing.T, conn *amqp.Connection, exchange, key string, msg amqp.Publishing) {
	t.Helper()
	ch, err := conn.Channel()
	require.NoError(t, err)
	require.NoError(t, ch.Confirm(false))
	confirm, err := ch.PublishWithDeferredConfirm(exchange, key, true, false, msg)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	acked, err := confirm.WaitContext(ctx)
	require.NoError(t, err)
	require.True(t, acked)
	require.NoError(t, ch.Close())
}

// exchange declares an exchange for the test, with the queue bound to it by each key.
func (s *setup) exchange(kind string, keys ...string) string {
	s.t.Helper()
	name := testenv.Name(s.t, "x")
	ch, err := s.broker.Dial(s.t).Channel()
	require.NoError(s.t, err)
	require.NoError(s.t, ch.ExchangeDeclare(name, kind, true, false, false, false, nil))
	for _, key := range keys {
		require.NoError(s.t, ch.QueueBind(s.queue.Name, key, name, false, nil))
	}
	s.t.Cleanup(func() {
		ch, err := s.broker.Dial(s.t).Channel()
		require.NoError(s.t, err)
		require.NoError(s.t, ch.ExchangeDelete(name, false, false))
	})
	return name
}

// drain takes everything out of a queue and returns it. It waits until there are n messages.
func (s *setup) drain(queue string, n int) (out []amqp.Delivery) {
	s.t.Helper()
	testenv.Eventually(s.t, patience, func() bool { return s.depth(queue) >= n }, "%d messages in %s", n, queue) // it need not exist yet
	ch, err := s.broker.Dial(s.t).Channel()
	require.NoError(s.t, err)
	testenv.Eventually(s.t, patience, func() bool {
		d, ok, err := ch.Get(queue, true)
		require.NoError(s.t, err)
		if ok {
			out = append(out, d)
		}
		return len(out) >= n && !ok
	}, "%d messages in %s", n, queue)
	require.Len(s.t, out, n)
	return out
}

// depth is the number of messages in a queue, unacknowledged ones included.
func (s *setup) depth(queue string) int {
	s.t.Helper()
	info := s.broker.Queue(s.t, queue)
	return info.Ready + info.Unacked
}

// empty waits until nothing is left in the queue and the delay queues of p.
func (s *setup) empty(p retry.Policy) {
	s.t.Helper()
	dlq := s.queue.DeadLetterQueue()
	testenv.Eventually(s.t, 2*patience, func() bool {
		sum := s.depth(s.queue.Name)
		for _, q := range p.Topology(s.queue.Name).Queues {
			if q.Name != dlq {
				sum += s.depth(q.Name)
			}
		}
		return sum == 0
	}, "nothing left to do in %s", s.queue.Name)
}

func (s *setup) within(d time.Duration) context.Context { return within(s.t, d) }

// within returns a context for one call.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// receive returns what comes from ch, and fails the test when nothing does in time.
func receive[T any](t *testing.T, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		require.FailNow(t, "not in time", what)
		panic("unreachable")
	}
}

// visit is one run of a handler.
type visit struct {
	amqp.Delivery
	retry.Info
	at time.Time
}

// visits are the runs of a handler, by MessageId.
type visits struct {
	mu   sync.Mutex
	byID map[string][]visit
}

func newVisits() *visits { return &visits{byID: map[string][]visit{}} }

func (v *visits) add(d amqp.Delivery) (n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	d.Headers = maps.Clone(d.Headers)
	v.byID[d.MessageId] = append(v.byID[d.MessageId], visit{d, retry.InfoOf(d), time.Now()})
	return len(v.byID[d.MessageId])
}

func (v *visits) of(id string) []visit {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.byID[id])
}

// distinct is how many messages were seen, total how many runs there were.
func (v *visits) distinct() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.byID)
}

func (v *visits) total() (n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, runs := range v.byID {
		n += len(runs)
	}
	return n
}

// failing returns a handler that notes each run, and fails all but those from the n-th run of a message on.
func (v *visits) failing(n int) retry.Handler {
	return func(_ context.Context, d amqp.Delivery) error {
		if v.add(d) >= n {
			return nil
		}
		return fmt.Errorf("the %s fails", d.Body)
	}
}
