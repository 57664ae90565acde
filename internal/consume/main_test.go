package consume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/report"
	"github.com/warrenmq/warren/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// long bounds every wait of a test for something that should happen at once.
const long = 20 * time.Second

// link is the least that Supervise can be: one connection of the raw driver, dialled again when it is gone.
type link struct {
	tb   testing.TB
	url  string
	name string // connection name

	mu     sync.Mutex
	conn   *amqp.Connection
	states map[string][]string // by supervised name, "phase: reason"
	opened int                 // channels so far
}

func newLink(tb testing.TB, url string) *link {
	l := &link{tb: tb, url: url, name: testenv.Name(tb, "link"), states: map[string][]string{}}
	tb.Cleanup(func() {
		if l.conn != nil {
			_ = l.conn.CloseDeadline(time.Now().Add(2 * time.Second))
		}
	})
	return l
}

func (l *link) channel() (*amqp.Channel, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil || l.conn.IsClosed() {
		props := amqp.NewConnectionProperties()
		props.SetClientConnectionName(l.name)
		conn, err := amqp.DialConfig(l.url, amqp.Config{Properties: props})
		if err != nil {
			return nil, err
		}
		l.conn = conn
	}
	l.opened++
	return l.conn.Channel()
}

func (l *link) channels() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.opened
}

// state returns what the named worker reported, oldest first.
func (l *link) state(name string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.states[name]...)
}

// latest returns what the named worker reported last, "" when that is nothing yet.
func (l *link) latest(name string) string {
	states := l.state(name)
	if len(states) == 0 {
		return ""
	}
	return states[len(states)-1]
}

func (l *link) Supervise(ctx context.Context, name string, fn func(context.Context, *amqp.Channel) error) error {
	for ctx.Err() == nil {
		ch, err := l.channel()
		if err == nil {
			var whole bool
			if whole, err = l.once(ctx, name, ch, fn); whole && ctx.Err() == nil || isPermanent(err) {
				return err
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

func (l *link) once(ctx context.Context, name string, ch *amqp.Channel, fn func(context.Context, *amqp.Channel) error) (whole bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ctx = report.With(ctx, func(phase, reason string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.states[name] = append(l.states[name], phase+": "+reason)
	})
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case e := <-closed:
			if e == nil {
				e = amqp.ErrClosed
			}
			cancel(e)
		case <-done:
		}
	})
	err = fn(ctx, ch)
	close(done)
	wg.Wait()
	whole = !ch.IsClosed()
	if whole {
		go ch.Close() // may hang on a frozen link
	}
	return whole, err
}

// rig is a queue with its dead-letter queue on the shared broker.
type rig struct {
	tb     testing.TB
	broker *testenv.Broker
	link   *link
	conn   *amqp.Connection // the test's own
	queue  string
	dlq    string
}

func newRig(tb testing.TB, args amqp.Table) *rig { return newRigOn(tb, testenv.Shared(tb), args) }

func newRigOn(tb testing.TB, broker *testenv.Broker, args amqp.Table) *rig {
	r := &rig{tb: tb, broker: broker, link: newLink(tb, broker.URL()), conn: broker.Dial(tb), queue: testenv.Name(tb, "q")}
	r.dlq = r.queue + ".dlq"
	ch := r.channel()
	_, err := ch.QueueDeclare(r.dlq, true, false, false, false, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1000000)})
	require.NoError(tb, err)
	all := amqp.Table{
		"x-queue-type": "quorum", "x-delivery-limit": int64(20),
		"x-dead-letter-exchange": "", "x-dead-letter-routing-key": r.dlq,
	}
	for k, v := range args {
		all[k] = v
	}
	if all["x-queue-type"] == "classic" {
		delete(all, "x-delivery-limit")
	}
	_, err = ch.QueueDeclare(r.queue, true, false, false, false, all)
	require.NoError(tb, err)
	require.NoError(tb, ch.Close())
	tb.Cleanup(func() {
		ch := r.channel()
		_, _ = ch.QueueDelete(r.queue, false, false, false)
		_, _ = ch.QueueDelete(r.dlq, false, false, false)
	})
	return r
}

func (r *rig) channel() *amqp.Channel {
	ch, err := r.conn.Channel()
	require.NoError(r.tb, err)
	return ch
}

// publish sends n messages with bodies and ids from, from+1, ...
func (r *rig) publish(from, n int) {
	ch := r.channel()
	defer ch.Close()
	require.NoError(r.tb, ch.Confirm(false))
	var last *amqp.DeferredConfirmation
	for i := range n {
		id := strconv.Itoa(from + i)
		var err error
		last, err = ch.PublishWithDeferredConfirm("", r.queue, true, false, amqp.Publishing{MessageId: id, Body: []byte(id), DeliveryMode: amqp.Persistent})
		require.NoError(r.tb, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), long)
	defer cancel()
	ok, err := last.WaitContext(ctx)
	require.NoError(r.tb, err)
	require.True(r.tb, ok)
}

// config is a Config for r's queue on r's link.
func (r *rig) config(h Handler) Config {
	return Config{
		Name: "worker", Queue: r.queue, Handler: h, Supervise: r.link.Supervise,
		ShutdownTimeout: 5 * time.Second, AbandonAfter: 5 * time.Second, // the broker may pause between
		Logger: testenv.Logger(io.Discard),
	}
}

func (r *rig) eventually(cond func() bool, msg string, args ...any) {
	r.tb.Helper()
	testenv.Eventually(r.tb, long, cond, msg, args...)
}

// held waits until the channels of r's link hold n messages: until the broker has sent them, ahead of its answer to whatever
// it is asked from now on. The queue counts them earlier, and what is on its way between the two when a consumer ends the broker
// returns by itself.
func (r *rig) held(n int) {
	r.tb.Helper()
	r.eventually(func() bool {
		held := 0
		for _, ch := range r.broker.Channels(r.tb, r.link.name) {
			held += ch.Unacked
		}
		return held == n
	}, "the worker holds %d messages", n)
}

// handles waits until n messages were seen, for as long as they become more: with prefetch 1 each of them waits for a disk.
func (r *rig) handles(seen *record, n int) {
	r.tb.Helper()
	for now := seen.len(); now < n; now = seen.len() {
		r.eventually(func() bool { return seen.len() > now }, "a message after the first %d of %d", now, n)
	}
}

// empty waits until the queue holds nothing and the dead-letter queue n.
func (r *rig) empty(n int) {
	r.tb.Helper()
	var q, dlq testenv.QueueInfo
	r.eventually(func() bool {
		q, dlq = r.broker.Queue(r.tb, r.queue), r.broker.Queue(r.tb, r.dlq)
		return q.Ready+q.Unacked == 0 && dlq.Ready == n
	}, "queue empty and %d dead-lettered", n)
}

// drainQueue takes everything from a queue, in order. (Get is refused on a queue with a single active consumer.) What comes to
// it meanwhile stays there.
func (r *rig) drainQueue(name string) (ds []amqp.Delivery) {
	var q testenv.QueueInfo
	r.eventually(func() bool { q = r.broker.Queue(r.tb, name); return q.Unacked == 0 }, "what the closed channels had is back")
	ch := r.channel()
	defer ch.Close()
	in, err := ch.Consume(name, "", false, false, false, false, nil)
	require.NoError(r.tb, err)
	for range q.Ready {
		select {
		case d := <-in:
			ds = append(ds, d)
		case <-time.After(long):
			require.Fail(r.tb, "fewer messages than the queue says")
		}
	}
	if len(ds) > 0 {
		require.NoError(r.tb, ch.Ack(ds[len(ds)-1].DeliveryTag, true))
	}
	return ds
}

// run is a loop that runs.
type run struct {
	*Loop
	tb     testing.TB
	cancel context.CancelFunc
	err    chan error
}

func start(tb testing.TB, cfg Config) *run {
	l, err := New(cfg)
	require.NoError(tb, err)
	return startLoop(tb, l)
}

func startLoop(tb testing.TB, l *Loop) *run {
	ctx, cancel := context.WithCancel(context.Background())
	r := &run{Loop: l, tb: tb, cancel: cancel, err: make(chan error, 1)}
	go func() { r.err <- l.Run(ctx) }()
	tb.Cleanup(func() { cancel() })
	return r
}

func (r *run) waitReady() *run {
	select {
	case <-r.Ready():
	case <-time.After(long):
		require.Fail(r.tb, "not ready in time")
	}
	return r
}

// stop ends the run and returns its error.
func (r *run) stop() error {
	r.cancel()
	return r.wait(long)
}

func (r *run) wait(limit time.Duration) error {
	select {
	case err := <-r.err:
		return err
	case <-time.After(limit):
		require.Fail(r.tb, "Run did not return in time")
		return nil
	}
}

// record collects ids in the order in which handlers saw them.
type record struct {
	mu  sync.Mutex
	ids []string
}

func (r *record) add(d amqp.Delivery) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ids = append(r.ids, d.MessageId)
	return len(r.ids)
}

func (r *record) len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.ids)
}

func (r *record) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.ids...)
}

func (r *record) handler(_ context.Context, d amqp.Delivery) error {
	r.add(d)
	return nil
}

// ids are n ids counted from from.
func ids(from, n int) []string {
	var all []string
	for i := range n {
		all = append(all, strconv.Itoa(from+i))
	}
	return all
}

// returns is how often the broker says a message was returned before.
func returns(d amqp.Delivery) int64 {
	n, _ := d.Headers["x-delivery-count"].(int64)
	return n
}

// busy is a "not now".
type busy struct{ after time.Duration }

func (b busy) Error() string             { return "busy" }
func (b busy) NotNow() bool              { return true }
func (b busy) RetryAfter() time.Duration { return b.after }

var errBad = errors.New("bad message")

func waitFor(tb testing.TB, what string, ch <-chan struct{}) {
	tb.Helper()
	select {
	case <-ch:
	case <-time.After(long):
		require.Fail(tb, fmt.Sprintf("no %s in time", what))
	}
}

// raise makes most at least v.
func raise(most *atomic.Int64, v int64) {
	for now := most.Load(); v > now && !most.CompareAndSwap(now, v); now = most.Load() {
	}
}
