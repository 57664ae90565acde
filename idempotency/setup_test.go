package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/idempotency"
	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// patience is how long a test waits for what must happen; far above what it takes.
const patience = 30 * time.Second

var quiet = testenv.Logger(io.Discard)

// db is a database of a test's own, with accounts that handlers book on.
type db struct {
	t    testing.TB
	url  string // past any proxy
	name string // application_name of the pool's sessions
	pool *pgxpool.Pool

	looking sync.Mutex
	look    *pgx.Conn // of the test's own
}

const conns = 20 // of a pool

func newDB(t testing.TB) *db {
	t.Helper()
	return newDBAt(t, testenv.Postgres(t), "")
}

// newDBAt makes the accounts in the database at url; the pool goes through the address of via, if there is one.
func newDBAt(t testing.TB, url, via string) *db {
	t.Helper()
	d := &db{t: t, url: url, name: applicationName(t)}
	if via == "" {
		via = url
	}
	d.pool = d.open(via, conns)
	t.Cleanup(func() {
		if d.look != nil {
			_ = d.look.Close(context.Background())
		}
	})
	d.exec(`CREATE TABLE accounts (id text PRIMARY KEY, balance bigint NOT NULL DEFAULT 0)`)
	d.exec(`INSERT INTO accounts VALUES ('a'), ('b')`)
	return d
}

// newProxiedDB makes one whose pool goes through a proxy.
func newProxiedDB(t testing.TB) (*db, *testenv.FaultProxy) {
	t.Helper()
	url := testenv.Postgres(t)
	proxy := testenv.Proxy(t, url)
	return newDBAt(t, url, proxy.URL()), proxy
}

// applicationName is Name within the 63 bytes that PostgreSQL keeps.
func applicationName(t testing.TB) string {
	name := testenv.Name(t, "pool")
	return name[max(0, len(name)-63):]
}

// open opens a pool.
func (d *db) open(url string, conns int32) *pgxpool.Pool {
	d.t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	require.NoError(d.t, err)
	cfg.MaxConns = conns
	cfg.ConnConfig.RuntimeParams["application_name"] = d.name
	cfg.ConnConfig.ConnectTimeout = 5 * time.Second
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	require.NoError(d.t, err)
	d.t.Cleanup(pool.Close)
	return pool
}

// inbox makes an Inbox, with its tables, on the pool.
func (d *db) inbox(consumer string, cfg idempotency.Config) *idempotency.Inbox {
	d.t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = quiet
	}
	inbox, err := idempotency.New(d.pool, consumer, cfg)
	require.NoError(d.t, err)
	require.NoError(d.t, inbox.Migrate(within(d.t, patience)))
	return inbox
}

// direct runs fn on a connection past any proxy, one that is kept: a login takes longer than most of what is asked.
func (d *db) direct(fn func(ctx context.Context, conn *pgx.Conn) error) {
	d.t.Helper()
	d.looking.Lock()
	defer d.looking.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if d.look == nil || d.look.IsClosed() || d.look.Ping(ctx) != nil {
		var err error
		d.look, err = pgx.Connect(ctx, d.url)
		require.NoError(d.t, err)
	}
	require.NoError(d.t, fn(ctx, d.look))
}

func (d *db) exec(sql string, args ...any) {
	d.t.Helper()
	d.direct(func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql, args...)
		return err
	})
}

// number returns the one number that a query gives.
func (d *db) number(sql string, args ...any) (n int) {
	d.t.Helper()
	d.direct(func(ctx context.Context, conn *pgx.Conn) error { return conn.QueryRow(ctx, sql, args...).Scan(&n) })
	return n
}

func (d *db) balance(account string) int {
	d.t.Helper()
	return d.number("SELECT balance FROM accounts WHERE id = $1", account)
}

// known is how many keys are recorded.
func (d *db) known() int {
	d.t.Helper()
	return d.number("SELECT count(*) FROM inbox")
}

// add books 1 on an account.
func add(ctx context.Context, tx pgx.Tx, account string) error {
	_, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance + 1 WHERE id = $1", account)
	return err
}

// addA is add as a function of Do.
func addA(ctx context.Context, tx pgx.Tx) error { return add(ctx, tx, "a") }

// queue is a work queue of a test's own.
type queue struct {
	workqueue.Queue
	t      *testing.T
	broker *testenv.Broker
	conn   *reconnect.Conn
}

func newQueue(t *testing.T, broker *testenv.Broker) *queue {
	t.Helper()
	return newQueueLogged(t, broker, quiet)
}

func newQueueLogged(t *testing.T, broker *testenv.Broker, log *slog.Logger) *queue {
	t.Helper()
	q := &queue{Queue: workqueue.Queue{Name: testenv.Name(t, "payments")}, t: t, broker: broker}
	conn, err := reconnect.Dial(within(t, patience), broker.URL(), reconnect.Config{
		Name: testenv.Name(t, "conn"), Logger: log, BackoffMin: 10 * time.Millisecond, BackoffMax: 100 * time.Millisecond,
	})
	require.NoError(t, err)
	q.conn = conn
	t.Cleanup(func() {
		require.NoError(t, conn.Close(context.Background()))
		broker.DeleteQueue(t, q.Name)
		broker.DeleteQueue(t, q.DeadLetterQueue())
	})
	return q
}

func (q *queue) publish(msgs ...amqp.Publishing) {
	q.t.Helper()
	p, err := workqueue.NewProducer(q.conn, q.Queue, reconnect.PublisherConfig{})
	require.NoError(q.t, err)
	require.NoError(q.t, p.PublishBatch(within(q.t, patience), msgs))
}

// publishRaw publishes past the library, which would give a message an id, and waits until the messages are there.
func (q *queue) publishRaw(msgs ...amqp.Publishing) {
	q.t.Helper()
	require.NoError(q.t, q.conn.Declare(within(q.t, patience), q.Topology()))
	conn := q.broker.Dial(q.t)
	defer conn.Close()
	ch, err := conn.Channel()
	require.NoError(q.t, err)
	require.NoError(q.t, ch.Confirm(false))
	for _, msg := range msgs {
		confirm, err := ch.PublishWithDeferredConfirm("", q.Name, true, false, msg)
		require.NoError(q.t, err)
		acked, err := confirm.WaitContext(within(q.t, patience))
		require.NoError(q.t, err)
		require.True(q.t, acked)
	}
}

// work runs a worker until the returned function is called, which waits for it.
func (q *queue) work(h workqueue.Handler, cfg workqueue.WorkerConfig) (stop func()) {
	q.t.Helper()
	w, err := workqueue.NewWorker(q.conn, q.Queue, h, cfg)
	require.NoError(q.t, err)
	return q.run(w)
}

func (q *queue) workBatches(h workqueue.BatchHandler, cfg workqueue.WorkerConfig) (stop func()) {
	q.t.Helper()
	w, err := workqueue.NewBatchWorker(q.conn, q.Queue, h, cfg)
	require.NoError(q.t, err)
	return q.run(w)
}

func (q *queue) run(w *workqueue.Worker) (stop func()) {
	q.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(q.t, <-done)
	})
	q.t.Cleanup(stop)
	select {
	case <-w.Ready():
	case err := <-done:
		require.FailNow(q.t, "Run ended before it was ready", "%v", err)
	case <-time.After(patience):
		require.FailNow(q.t, "worker not ready in time")
	}
	return stop
}

func (q *queue) depth(name string) int {
	q.t.Helper()
	info := q.broker.Queue(q.t, name)
	return info.Ready + info.Unacked
}

// settled waits until everything is settled and so many messages are dead.
func (q *queue) settled(dead int) {
	q.t.Helper()
	testenv.Eventually(q.t, patience, func() bool { return q.depth(q.Name) == 0 }, "the queue is empty")
	testenv.Eventually(q.t, patience, func() bool { return q.depth(q.DeadLetterQueue()) == dead }, "%d dead letters", dead)
}

// within returns a context for one call.
func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
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

// tookOnce is took for a call that can be made again, and is, up to five times: what takes too long does so each time, and the
// machine does not pause in each. call returns how long it took.
func tookOnce(t *testing.T, bound time.Duration, what string, call func() time.Duration) {
	t.Helper()
	measured := call()
	for n := 1; n < 5 && measured > 3*bound; n++ {
		measured = min(measured, call())
	}
	require.LessOrEqual(t, measured, 3*bound, "%s took %v at least, promised within %v", what, measured, bound)
	t.Logf("%s took %v, promised within %v", what, measured.Round(time.Millisecond), bound)
}

func notNow(err error) bool {
	var n interface{ NotNow() bool }
	return errors.As(err, &n) && n.NotNow()
}

func permanent(err error) bool {
	var p interface{ Permanent() bool }
	return errors.As(err, &p) && p.Permanent()
}

// errWork is what failing functions return.
var errWork = errors.New("the work failed")

// all calls fn n times at once and returns what the calls returned.
func all(n int, fn func(i int) error) []error {
	errs := make([]error, n)
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() { errs[i] = fn(i) })
	}
	running.Wait()
	return errs
}

// recovering makes an error of a panic, as a consumer does.
func recovering(fn func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	return fn()
}
