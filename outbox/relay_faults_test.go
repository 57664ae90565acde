package outbox

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
)

// dialed returns a connection to a broker, and its name.
func dialed(t testing.TB, b *testenv.Broker) (*reconnect.Conn, string) {
	t.Helper()
	name := testenv.Name(t, "relay")
	conn, err := reconnect.Dial(context.Background(), b.URL(), reconnect.Config{Name: name, BackoffMax: time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(context.Background())) })
	return conn, name
}

// storeNumbered stores messages for queue with the numbers from first on as their types.
func storeNumbered(t testing.TB, box *Outbox, queue string, first, n int) {
	t.Helper()
	msgs := make([]Message, n)
	for i := range msgs {
		msgs[i] = Message{Key: queue, Publishing: amqp.Publishing{Type: strconv.Itoa(first + i), Body: []byte("x")}}
	}
	storeAll(t, box, msgs...)
}

// retries returns the failures that are noted.
func retries(t testing.TB, box *Outbox) (all []string) {
	t.Helper()
	all, err := selectAll[string](context.Background(), box.pool, "SELECT attempts || ' ' || last_error FROM outbox_retry ORDER BY id")
	require.NoError(t, err)
	return all
}

// P59: a message that no queue takes, or that a queue refuses, stays, with the reason; it is sent once a queue takes it.
func TestP59WhatIsNotSafeStays(t *testing.T) {
	t.Parallel()
	box := newBox(t, Config{})
	conn, _ := dialed(t, testenv.Shared(t))
	ch, err := testenv.Shared(t).Dial(t).Channel()
	require.NoError(t, err)
	nobody, full := testenv.Name(t, "nobody"), testenv.Name(t, "full")
	_, err = ch.QueueDeclare(full, true, false, false, false, amqp.Table{"x-max-length": int64(0), "x-overflow": "reject-publish"})
	require.NoError(t, err)
	t.Cleanup(func() { testenv.Shared(t).DeleteQueue(t, full); testenv.Shared(t).DeleteQueue(t, nobody) })

	relay(t, box, publisher(t, conn), RelayConfig{BackoffMin: 100 * time.Millisecond, BackoffMax: 200 * time.Millisecond, MaxAttempts: -1})
	storeAll(t, box, Message{Key: nobody}, Message{Key: full})
	testenv.Eventually(t, patience, func() bool {
		all := strings.Join(retries(t, box), "\n")
		return strings.Contains(all, "no queue took it") && strings.Contains(all, "refused by a queue")
	}, "both failures are noted")
	require.EqualValues(t, 2, waiting(t, box))

	_, err = ch.QueueDeclare(nobody, true, false, false, false, nil)
	require.NoError(t, err)
	testenv.Shared(t).DeleteQueue(t, full)
	_, err = ch.QueueDeclare(full, true, false, false, false, nil)
	require.NoError(t, err)
	drained(t, box)
	for _, queue := range []string{nobody, full} {
		require.Equal(t, 1, testenv.Shared(t).Queue(t, queue).Ready, queue)
	}
	testenv.Eventually(t, patience, func() bool { return len(retries(t, box)) == 0 }, "their failures are forgotten, after the rows")
}

// A message without exchange and key goes where its headers CC and BCC send it, and without them nowhere: the Publisher has
// that from the broker, an outbox refuses it.
func TestWithoutExchangeAndKey(t *testing.T) {
	t.Parallel()
	box, in, hidden := newBox(t, Config{}), newInbox(t), newInbox(t)
	conn, _ := dialed(t, testenv.Shared(t))
	pub := publisher(t, conn)
	var returned *reconnect.ReturnedError
	require.ErrorAs(t, pub.Publish(t.Context(), "", "", amqp.Publishing{}), &returned)
	err := box.InTx(t.Context(), func(tx pgx.Tx) error { return box.Enqueue(t.Context(), tx, Message{}) })
	require.ErrorContains(t, err, "message 0: Exchange, Key: both empty")
	require.True(t, isPermanent(err))

	storeAll(t, box, Message{Publishing: amqp.Publishing{Type: "0", Headers: amqp.Table{"CC": []any{in.queue}, "BCC": []any{hidden.queue}}}})
	relay(t, box, pub, RelayConfig{})
	drained(t, box)
	in.complete(t, 1)
	hidden.complete(t, 1)
}

// Cuts of the link under load: nothing is lost, and what comes first comes in order.
func TestCutsOfTheBrokersLink(t *testing.T) {
	t.Parallel()
	const rows, cuts = 3000, 3
	box, in := newBox(t, Config{}), newInbox(t)
	conn, name := dialed(t, testenv.Shared(t))
	relay(t, box, publisher(t, conn), RelayConfig{Batch: 200})
	for i := range cuts {
		storeNumbered(t, box, in.queue, i*rows/cuts, rows/cuts)
		testenv.Eventually(t, patience, func() bool { return in.count() > i*rows/cuts }, "rows flow")
		testenv.Shared(t).CutConnections(t, name)
	}
	drained(t, box)
	in.complete(t, rows)
	require.Equal(t, numbered("", rows), in.firsts())
	require.Empty(t, retries(t, box), "an outage costs no attempts")
	t.Logf("%d came twice", in.repeated())
}

// A queue that neither confirms nor refuses, as one without its majority: nothing is known of what was sent. It is sent
// again, one at a time until one is confirmed, and no attempt is charged.
func TestConfirmationsThatDoNotCome(t *testing.T) {
	t.Parallel()
	box, in := newBox(t, Config{}), newInbox(t)
	conn, _ := dialed(t, testenv.Shared(t))
	pub, err := conn.NewPublisher(reconnect.PublisherConfig{ConfirmTimeout: 300 * time.Millisecond, Window: 1000})
	require.NoError(t, err)
	resume := testenv.Shared(t).StallQueue(t, in.queue)
	counted := &counting{Publisher: pub}
	relay(t, box, counted, RelayConfig{})
	storeNumbered(t, box, in.queue, 0, 500)
	testenv.Eventually(t, 3*patience, func() bool { return counted.calls.Load() >= 4 }, "it is tried again")
	require.Less(t, counted.messages.Load(), int64(500+10), "only the first time all of them")
	resume()
	drained(t, box)
	in.complete(t, 500)
	require.Empty(t, retries(t, box))
	t.Logf("%d came twice", in.repeated())
}

// counting counts calls.
type counting struct {
	Publisher
	calls, messages atomic.Int64
}

func (c *counting) PublishBatch(ctx context.Context, msgs []reconnect.Message) error {
	c.calls.Add(1)
	c.messages.Add(int64(len(msgs)))
	return c.Publisher.PublishBatch(ctx, msgs)
}

// queries counts statements of connections that are made with its pool's settings.
type queries struct{ n atomic.Int64 }

func (q *queries) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	q.n.Add(1)
	return ctx
}

func (q *queries) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// P56, target 9: while the broker blocks publishers the relay holds no transaction, no row lock and no snapshot, asks the
// database next to nothing, and takes nothing from the pool of the application. Afterwards it drains by itself, and no
// message was charged with an attempt.
// 20 s, 5 min in make chaos.
func TestChaosP56Alarm(t *testing.T) {
	t.Parallel()
	lasts := 20 * time.Second
	if chaos() {
		lasts = 5 * time.Minute
	}
	node := testenv.Node(t)
	url := testenv.Postgres(t)
	asked := new(queries)
	pool := newPool(t, url, func(cfg *pgxpool.Config) {
		cfg.MaxConns = 4
		cfg.ConnConfig.Tracer = asked
	})
	box, in := boxIn(t, pool, Config{}), newInboxAt(t, node.Broker)
	look := newPool(t, url, nil)
	conn, _ := dialed(t, node.Broker)
	relay(t, box, publisher(t, conn), RelayConfig{})
	storeNumbered(t, box, in.queue, 0, 1)
	in.complete(t, 1)
	node.Alarm(true)
	storeNumbered(t, box, in.queue, 1, 1) // the broker says that it blocks when somebody publishes
	testenv.Eventually(t, patience, func() bool {
		return slices.ContainsFunc(conn.State(), func(s reconnect.State) bool { return s.Phase == "blocked" })
	}, "the broker blocks")
	storeNumbered(t, box, in.queue, 2, 999)
	held := func() int64 { // Row locks are of a transaction. What a probe has for its moment, long as that may be here, is not held.
		return scan[int64](t, look, `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'warren outbox relay'
			AND datname = current_database() AND clock_timestamp() - xact_start > '5 s'`)
	}
	testenv.Eventually(t, patience, func() bool { return held() == 0 }, "the relay holds nothing")
	before, start, busy := asked.n.Load(), time.Now(), int64(0)
	testenv.Eventually(t, lasts+patience, func() bool {
		busy = max(busy, held())
		return time.Since(start) > lasts
	}, "the alarm goes on")
	perSecond := float64(asked.n.Load()-before) / time.Since(start).Seconds()
	t.Logf("%.2f queries a second from the relay during the alarm", perSecond)
	require.LessOrEqual(t, perSecond, 1.0)
	var held4 []*pgxpool.Conn
	for range 4 {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		c, err := pool.Acquire(ctx)
		cancel()
		require.NoError(t, err, "the application's pool serves")
		held4 = append(held4, c)
	}
	for _, c := range held4 {
		c.Release()
	}
	require.Zero(t, in.repeated())
	node.Alarm(false)
	drained(t, box)
	in.complete(t, 1001)
	require.Empty(t, retries(t, box))
	require.LessOrEqual(t, in.repeated(), 1, "only one had been sent")
	require.Zero(t, busy, "the relay has held a transaction")
}

// The database crashes and comes back under load, again and again: nothing is lost, and what came twice has its old id.
func TestDatabaseCrashes(t *testing.T) {
	t.Parallel()
	node := testenv.PostgresNode(t)
	box, in := boxIn(t, newPool(t, node.URL(), nil), Config{}), newInbox(t)
	conn, _ := dialed(t, testenv.Shared(t))
	relay(t, box, publisher(t, conn), RelayConfig{Batch: 200})
	const rows = 2000
	for i := range 4 {
		storeNumbered(t, box, in.queue, i*rows/4, rows/4)
		// After a crash the relay pauses for up to 5 s, and may then wait as long for what it has left to delete.
		testenv.Eventually(t, 3*patience, func() bool { return in.count() > i*rows/4 }, "rows flow")
		node.Restart()
		testenv.Eventually(t, patience, func() bool { return box.pool.Ping(t.Context()) == nil }, "the database serves")
	}
	drained(t, box)
	in.complete(t, rows)
	require.Equal(t, numbered("", rows), in.firsts())
	t.Logf("%d of %d came twice", in.repeated(), rows)
}

// P61: the leader's session is ended, so that nobody listens: what is enqueued then is sent within a poll of the relay that
// leads next. Another time the network to the database freezes, as when the leader's host is gone: the server ends the
// session by its silence, and a standby takes over.
func TestP61LostListeners(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	proxy := testenv.Proxy(t, url)
	far, near, pub := boxIn(t, newPool(t, proxy.URL(), nil), Config{}), boxIn(t, newPool(t, url, nil), Config{}), new(fake)
	first := relay(t, far, pub, RelayConfig{})
	store(t, near, "a")
	drained(t, near)
	twoSessions(t, url)
	testenv.TerminateSessions(t, url, "warren outbox relay")
	start := time.Now()
	store(t, near, "b")
	drained(t, near)
	t.Logf("sent %v after the listener was ended", time.Since(start).Round(time.Millisecond))
	require.Less(t, time.Since(start), 9*time.Second, "target: 1 s and a little")

	testenv.Eventually(t, patience, func() bool { return leading(first) }, "it leads again")
	relay(t, near, pub, RelayConfig{})
	proxy.Freeze()
	start = time.Now()
	store(t, near, "c")
	testenv.Eventually(t, 45*time.Second, func() bool { return waiting(t, near) == 0 }, "it is sent; target: 15 s")
	t.Logf("sent %v after the leader's host was gone", time.Since(start).Round(time.Millisecond))
	proxy.Heal()
	testenv.Eventually(t, 2*patience, func() bool { return !leading(first) }, "it no longer leads")
	require.Equal(t, []string{"a", "b", "c"}, pub.sent())
}

// twoSessions waits until a relay of one lane has the two sessions that it keeps, and no longer the one in which it has looked
// for lanes, and returns their backends: the one that it leads by, and the one that it deletes in.
func twoSessions(t testing.TB, url string) (pids []int) {
	t.Helper()
	testenv.Eventually(t, patience, func() bool {
		pids = testenv.Sessions(t, url, "warren outbox relay")
		return len(pids) == 2
	}, "the relay has its two sessions")
	return pids
}

// leading reports whether r leads any lane.
func leading(r *running) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.led > 0
}

// After a failover to a replica that was behind, ids are drawn again. What was confirmed before is not deleted then under
// an id that belongs to another row now; and a new session starts without a memory of ids.
func TestIdsAreDrawnAgain(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	box, pub := boxIn(t, newPool(t, url, nil), Config{}), new(fake)
	var release atomic.Pointer[chan struct{}]
	hold := make(chan struct{})
	release.Store(&hold)
	pub.set(func(_ context.Context, msgs []reconnect.Message) error {
		if msgs[0].Key == "old.0" {
			<-*release.Load()
		}
		return nil
	})
	relay(t, box, pub, RelayConfig{})
	store(t, box, numbered("old.", 5)...)
	testenv.Eventually(t, patience, func() bool { return len(pub.calledWith()) == 1 }, "they are being sent")
	// The failover: the rows are not there, their ids are drawn again, and all sessions are new.
	exec(t, box.pool, "TRUNCATE outbox RESTART IDENTITY")
	pub.mu.Lock()
	pub.respond = func(context.Context, []reconnect.Message) error { return fmt.Errorf("not yet") }
	pub.mu.Unlock()
	store(t, box, numbered("new.", 5)...)
	testenv.TerminateSessions(t, url, "warren outbox relay")
	close(hold) // only now they are confirmed, and to be deleted
	testenv.Eventually(t, patience, func() bool { return len(pub.sent()) == 5 }, "the old ones were confirmed")
	testenv.Eventually(t, patience, func() bool { return len(pub.calledWith()) > 2 }, "the new ones are tried")
	require.EqualValues(t, 5, waiting(t, box), "and not deleted in place of the old ones")
	pub.set(nil)
	drained(t, box)
	require.Equal(t, append(numbered("old.", 5), numbered("new.", 5)...), pub.sent())
}
