package workqueue_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
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
	"github.com/warrenmq/warren/workqueue"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// patience is how long a test waits for what must happen; far above what it takes.
const patience = 30 * time.Second

// setup is a queue of its own, a Conn of its own, and what is needed to look at both.
type setup struct {
	t      *testing.T
	broker *testenv.Broker
	url    string
	conn   *reconnect.Conn
	name   string // the Conn's, by which the broker's side of it is found
	queue  workqueue.Queue
}

// newSetup makes a setup on the run's shared broker.
func newSetup(t *testing.T, q workqueue.Queue) *setup {
	t.Helper()
	broker := testenv.Shared(t)
	return newSetupOn(t, broker, broker.URL(), q)
}

func newSetupOn(t *testing.T, broker *testenv.Broker, url string, q workqueue.Queue) *setup {
	t.Helper()
	return newSetupWith(t, broker, url, q, reconnect.Config{})
}

// newSetupWith is newSetupOn with settings for the Conn.
func newSetupWith(t *testing.T, broker *testenv.Broker, url string, q workqueue.Queue, cfg reconnect.Config) *setup {
	t.Helper()
	q.Name = testenv.Name(t, "jobs")
	s := &setup{t: t, broker: broker, url: url, name: testenv.Name(t, "conn"), queue: q}
	cfg.Name = s.name
	s.conn = s.dialWith(cfg)
	t.Cleanup(func() {
		broker.DeleteQueue(t, q.Name)
		broker.DeleteQueue(t, q.DeadLetterQueue())
	})
	return s
}

// dial opens a further Conn.
func (s *setup) dial(name string) *reconnect.Conn {
	s.t.Helper()
	return s.dialWith(reconnect.Config{Name: name})
}

// dialWith opens a further Conn with settings of its own.
func (s *setup) dialWith(cfg reconnect.Config) *reconnect.Conn {
	s.t.Helper()
	conn := s.open(cfg)
	s.t.Cleanup(func() { require.NoError(s.t, conn.Close(context.Background())) })
	return conn
}

// open opens a Conn, which the test closes. Its pauses are short, since the tests cut it much more often than a link that
// fails should be dialed.
func (s *setup) open(cfg reconnect.Config) *reconnect.Conn {
	s.t.Helper()
	cfg.BackoffMin, cfg.BackoffMax = cmp.Or(cfg.BackoffMin, 10*time.Millisecond), cmp.Or(cfg.BackoffMax, 100*time.Millisecond)
	cfg.Heartbeat = cmp.Or(cfg.Heartbeat, 2*time.Second)
	cfg.Logger = cmp.Or(cfg.Logger, quiet)
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	conn, err := reconnect.Dial(ctx, s.url, cfg)
	require.NoError(s.t, err)
	return conn
}

func (s *setup) producer(cfg reconnect.PublisherConfig) *workqueue.Producer {
	s.t.Helper()
	p, err := workqueue.NewProducer(s.conn, s.queue, cfg)
	require.NoError(s.t, err)
	return p
}

// publish sends n messages with the ids 0 to n-1.
func (s *setup) publish(n int) {
	s.t.Helper()
	msgs := make([]amqp.Publishing, n)
	for i := range msgs {
		msgs[i] = amqp.Publishing{MessageId: strconv.Itoa(i), Body: []byte("job " + strconv.Itoa(i))}
	}
	require.NoError(s.t, s.producer(reconnect.PublisherConfig{}).PublishBatch(s.t.Context(), msgs))
}

// start runs a worker on conn until the returned function is called, which waits for it and returns Run's error.
func (s *setup) start(conn *reconnect.Conn, h workqueue.Handler, cfg workqueue.WorkerConfig) (stop func() error) {
	s.t.Helper()
	w, err := workqueue.NewWorker(conn, s.queue, h, cfg)
	require.NoError(s.t, err)
	return run(s.t, w)
}

func run(t *testing.T, w *workqueue.Worker) (stop func() error) {
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
		require.Fail(t, "worker not ready in time")
	}
	return stop
}

// raw publishes a message past the library, and waits for the broker's word that it is there.
func (s *setup) raw(msg amqp.Publishing) {
	s.t.Helper()
	conn := s.broker.Dial(s.t)
	defer conn.Close()
	ch, err := conn.Channel()
	require.NoError(s.t, err)
	require.NoError(s.t, ch.Confirm(false))
	confirm, err := ch.PublishWithDeferredConfirm("", s.queue.Name, true, false, msg)
	require.NoError(s.t, err)
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	acked, err := confirm.WaitContext(ctx)
	require.NoError(s.t, err)
	require.True(s.t, acked)
}

// workers are the states of the Conn's workers, without its links.
func workers(conn *reconnect.Conn) (out []reconnect.State) {
	for _, state := range conn.State() {
		if state.Name != "publishing" && state.Name != "consuming" {
			out = append(out, state)
		}
	}
	return out
}

// consuming waits until n workers consume, and returns their states.
func consuming(t *testing.T, conn *reconnect.Conn, n int) (out []reconnect.State) {
	t.Helper()
	testenv.Eventually(t, patience, func() bool {
		out = slices.DeleteFunc(workers(conn), func(s reconnect.State) bool { return s.Phase != "consuming" })
		return len(out) == n
	}, "%d workers consume", n)
	return out
}

// depth is the number of messages in a queue, unacknowledged ones included.
func (s *setup) depth(queue string) int {
	s.t.Helper()
	info := s.broker.Queue(s.t, queue)
	return info.Ready + info.Unacked
}

// settled waits until the queue is empty.
func (s *setup) settled() {
	s.t.Helper()
	s.nears(s.queue.Name, 0)
}

// deadLettered waits until n messages stand in the dead-letter queue: the broker moves them after it has taken them out of
// the queue, so an empty queue does not yet say that they are there.
func (s *setup) deadLettered(n int) {
	s.t.Helper()
	dlq := s.queue.DeadLetterQueue()
	s.nears(dlq, n)
	require.Equal(s.t, n, s.depth(dlq), "in %s", dlq)
}

// nears waits until a queue has n messages, or more when they come, for as long as it comes nearer to that: thousands of
// them, each of which is synced to a disk, may take longer than anything else that a test waits for.
func (s *setup) nears(queue string, n int) {
	s.t.Helper()
	nearest, since := math.MaxInt, time.Now()
	testenv.Eventually(s.t, 10*patience, func() bool {
		depth := s.depth(queue)
		if away := max(depth-n, n-depth); away < nearest {
			nearest, since = away, time.Now()
		}
		require.Less(s.t, time.Since(since), patience, "queue %s does not come to %d messages, it has %d", queue, n, depth)
		return depth == n || n > 0 && depth > n
	}, "%d messages in %s", n, queue)
}

// runs counts how often each message was handled.
type runs struct {
	mu    sync.Mutex
	byID  map[string]int
	order []string
}

func newRuns() *runs { return &runs{byID: map[string]int{}} }

func (r *runs) add(d amqp.Delivery) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.byID[d.MessageId]++
	r.order = append(r.order, d.MessageId)
}

func (r *runs) total() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.order)
}

func (r *runs) of(id string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byID[id]
}

// distinct is the number of messages handled at least once.
func (r *runs) distinct() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.byID)
}

// most is the greatest number of runs of one message.
func (r *runs) most() (most int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.byID {
		most = max(most, n)
	}
	return most
}

// firsts are the ids in the order in which they were handled for the first time.
func (r *runs) firsts() (out []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := map[string]bool{}
	for _, id := range r.order {
		if !seen[id] {
			seen[id] = true
			out = append(out, id)
		}
	}
	return out
}

func ids(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = strconv.Itoa(i)
	}
	return out
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

// within returns a context for one call.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// took fails the test when more than three times the promised bound has passed since began.
func took(t *testing.T, began time.Time, bound time.Duration, what string) {
	t.Helper()
	measured := time.Since(began)
	require.LessOrEqual(t, measured, 3*bound, "%s took %v, promised within %v", what, measured, bound)
	t.Logf("%s took %v, promised within %v", what, measured.Round(time.Millisecond), bound)
}

// lines counts what is logged, by message. It is the handler of a slog.Logger.
type lines struct {
	mu sync.Mutex
	n  map[string]int
}

func newLines() *lines { return &lines{n: map[string]int{}} }

func (l *lines) Enabled(context.Context, slog.Level) bool { return true }
func (l *lines) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *lines) WithGroup(string) slog.Handler            { return l }

func (l *lines) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.n[r.Message]++
	return nil
}

// count is how many lines began with the given words.
func (l *lines) count(words string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for message, times := range l.n {
		if strings.HasPrefix(message, words) {
			n += times
		}
	}
	return n
}

// What the library logs about a loss.
const (
	lostChannel = "running again"                                 // once for each lost channel of a worker
	staleSettle = "a handler finished after its channel was lost" // once for each message that could not be settled
)

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
