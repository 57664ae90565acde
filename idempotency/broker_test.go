package idempotency_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/idempotency"
	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

// P62: sixteen copies of one message over sixteen workers.
func TestP62SixteenCopiesOverTheBroker(t *testing.T) {
	t.Parallel()
	d, q := newDB(t), newQueue(t, testenv.Shared(t))
	inbox := d.inbox("billing", idempotency.Config{})
	msgs := make([]amqp.Publishing, 16)
	for i := range msgs {
		msgs[i] = amqp.Publishing{MessageId: "payment-1", Body: []byte("10 EUR")}
	}
	q.publish(msgs...)
	var calls atomic.Int32
	q.work(inbox.Handle(func(ctx context.Context, tx pgx.Tx, del amqp.Delivery) error {
		if calls.Add(1) == 1 {
			shoot(d, tx)
		}
		return addA(ctx, tx)
	}), workqueue.WorkerConfig{Concurrency: 16})
	q.settled(0)
	require.Equal(t, 1, d.balance("a"))
}

// P65: messages without a usable id are dead-lettered, each of them, with the reason in the log, and none reaches the handler. An
// id that two consumers see runs in both.
func TestP65BadIDsAreDeadLettered(t *testing.T) {
	t.Parallel()
	log := newLog()
	d, q := newDB(t), newQueueLogged(t, testenv.Shared(t), testenv.LoggerTo(log))
	byHeader := idempotency.Config{Key: func(d amqp.Delivery) string {
		key, _ := d.Headers["order"].(string)
		if key == "panic" {
			panic("no such key")
		}
		return key
	}}
	inbox := d.inbox("billing", byHeader)
	ofOrder := func(key string) amqp.Publishing { return amqp.Publishing{Headers: amqp.Table{"order": key}} }
	q.publishRaw(
		amqp.Publishing{Body: []byte("no header")}, amqp.Publishing{Body: []byte("another one without")},
		ofOrder(""), ofOrder(strings.Repeat("k", 10<<10)), ofOrder("a\x00b"), ofOrder("a\xffb"),
		amqp.Publishing{Headers: amqp.Table{"order": int64(7)}}, ofOrder("panic"),
		ofOrder("good"), ofOrder(strings.Repeat("k", 255)), ofOrder("good"),
	)
	q.work(inbox.Handle(func(ctx context.Context, tx pgx.Tx, _ amqp.Delivery) error { return addA(ctx, tx) }), workqueue.WorkerConfig{})
	q.settled(8)
	require.Equal(t, 2, d.balance("a"))
	testenv.Eventually(t, patience, func() bool { return log.count("message dead-lettered") == 8 }, "all are told of, each after it was rejected")
	require.Equal(t, 4, log.count("no usable key: empty"))
	require.Equal(t, 1, log.count("10240 bytes, at most 255"))
	require.Equal(t, 1, log.count("holds a NUL"))
	require.Equal(t, 1, log.count("not valid UTF-8"))
	require.Equal(t, 1, log.count("panicked: no such key"))
	require.False(t, log.holds("\x00"), "what came is shown quoted")

	byID, q2 := d.inbox("statistics", idempotency.Config{}), newQueue(t, q.broker)
	q2.publishRaw(amqp.Publishing{Body: []byte("1")}, amqp.Publishing{Body: []byte("2")}, amqp.Publishing{MessageId: "good"})
	q2.work(byID.Handle(func(ctx context.Context, tx pgx.Tx, _ amqp.Delivery) error { return add(ctx, tx, "b") }), workqueue.WorkerConfig{})
	q2.settled(2)
	require.Equal(t, 1, d.balance("b"))
}

// log collects what is logged, attributes included.
type testLog struct {
	mu    sync.Mutex
	lines []string
}

func newLog() *testLog { return &testLog{} }

func (l *testLog) Enabled(context.Context, slog.Level) bool { return true }
func (l *testLog) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *testLog) WithGroup(string) slog.Handler            { return l }

func (l *testLog) Handle(_ context.Context, r slog.Record) error {
	var line strings.Builder
	line.WriteString(r.Message)
	r.Attrs(func(a slog.Attr) bool { fmt.Fprintf(&line, " %v", a); return true })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line.String())
	return nil
}

func (l *testLog) count(words string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if strings.Contains(line, words) {
			n++
		}
	}
	return n
}

func (l *testLog) holds(words string) bool { return l.count(words) > 0 }

// outage is how long the database is away.
const outage = 30 * time.Second

// The database under load, and nobody retries: its sessions are killed, it restarts, crashes and freezes, and in the end it is
// away for 30 s. No message is dead-lettered, none is lost, and every balance is exact.
func TestChaosDatabaseFaultsAnd30SecondsWithout(t *testing.T) {
	t.Parallel()
	node := testenv.PostgresNode(t)
	d, q := newDBAt(t, node.URL(), ""), newQueue(t, testenv.Shared(t))
	inbox := d.inbox("billing", idempotency.Config{})
	load := newLoad(t, q)
	q.work(inbox.Handle(load.book), workqueue.WorkerConfig{Concurrency: 8})
	rounds := 1
	if os.Getenv("WARREN_CHAOS") != "" {
		rounds = 50
	}
	for range rounds {
		for _, strike := range []func(){
			func() { testenv.TerminateSessions(t, node.URL(), d.name) },
			node.Restart, // by a crash
			func() { node.Stop(); node.Start() },
			func() { node.Freeze(); wait(time.Second); node.Thaw() },
		} {
			load.more(50)
			strike()
		}
	}
	load.more(50)
	node.Crash()
	down, before := time.Now(), load.handled.Load()
	wait(outage)
	require.LessOrEqual(t, load.handled.Load(), before+8, "nothing is handled meanwhile")
	require.Zero(t, q.depth(q.DeadLetterQueue()))
	waiting := 0
	for _, s := range q.conn.State() {
		if s.Phase == "waiting" {
			waiting++
			require.Contains(t, s.Reason, "not now", "the state says why")
		}
	}
	require.Positive(t, waiting)
	node.Start()
	back := time.Now()
	load.more(100)
	took(t, back, 5*time.Second, fmt.Sprintf("going on after %v without a database", back.Sub(down).Round(time.Second)))
	load.stop()
	load.verify(d)
}

// wait is the length of a fault.
func wait(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	<-timer.C
}

// load publishes payments, some of them twice, until it is stopped.
type load struct {
	t       *testing.T
	q       *queue
	sent    [2]atomic.Int64 // distinct payments, by account
	handled atomic.Int64    // that a handler has got through
	stop    func()
}

var accounts = [2]string{"a", "b"}

func newLoad(t *testing.T, q *queue) *load {
	l := &load{t: t, q: q}
	require.NoError(t, q.conn.Declare(within(t, patience), q.Topology()))
	p, err := workqueue.NewProducer(q.conn, q.Queue, reconnect.PublisherConfig{})
	require.NoError(t, err)
	end, done := make(chan struct{}), make(chan struct{})
	l.stop = sync.OnceFunc(func() { close(end); <-done })
	t.Cleanup(l.stop)
	go func() {
		defer close(done)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			var msgs []amqp.Publishing
			for i := range 5 {
				account := rand.IntN(2)
				msg := amqp.Publishing{MessageId: fmt.Sprintf("%d-%d", n, i), Body: []byte(accounts[account])}
				msgs = append(msgs, msg)
				if i == 0 {
					msgs = append(msgs, msg) // as a sender does that did not get its confirm
				}
				l.sent[account].Add(1)
			}
			if err := p.PublishBatch(context.Background(), msgs); err != nil {
				t.Errorf("publish: %v", err)
				return
			}
			select {
			case <-tick.C:
			case <-end:
				return
			}
		}
	}()
	return l
}

// book is the handler.
func (l *load) book(ctx context.Context, tx pgx.Tx, d amqp.Delivery) error {
	if err := add(ctx, tx, string(d.Body)); err != nil {
		return err
	}
	l.handled.Add(1)
	return nil
}

// more waits until so many more were handled.
func (l *load) more(n int) {
	l.t.Helper()
	n += int(l.handled.Load())
	testenv.Eventually(l.t, patience, func() bool { return int(l.handled.Load()) >= n }, "%d handled", n)
}

// verify waits until all is settled and compares the balances.
func (l *load) verify(d *db) {
	l.t.Helper()
	for left := 1; left > 0; { // however many have come together, as long as they get fewer
		before := l.q.depth(l.q.Name)
		testenv.Eventually(l.t, patience, func() bool {
			left = l.q.depth(l.q.Name)
			return left == 0 || left < before
		}, "fewer than %d messages are left", before)
	}
	l.q.settled(0)
	for i, account := range accounts {
		require.EqualValues(l.t, l.sent[i].Load(), d.balance(account), "balance of %s", account)
	}
	l.t.Logf("%d payments, handled %d times", l.sent[0].Load()+l.sent[1].Load(), l.handled.Load())
}
