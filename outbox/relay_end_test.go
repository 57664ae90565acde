package outbox

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
)

// atOnce bounds, three times over, what waits for nothing.
const atOnce = 3 * time.Second

// endsWithin waits for Run to end by itself and returns how long that took.
func (r *running) endsWithin(t testing.TB, limit time.Duration) time.Duration {
	t.Helper()
	start := time.Now()
	select {
	case <-r.ended:
	case <-time.After(limit):
		t.Fatalf("Run goes on after %v", limit)
	}
	return time.Since(start)
}

// behind returns a connection to the shared broker through a proxy.
func behind(t testing.TB) (*reconnect.Conn, *testenv.FaultProxy) {
	t.Helper()
	proxy := testenv.Proxy(t, testenv.Shared(t).URL())
	conn, err := reconnect.Dial(t.Context(), proxy.URL(), reconnect.Config{Name: testenv.Name(t, "relay"), BackoffMax: time.Second})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second) // the broker may be away
		defer cancel()
		_ = conn.Close(ctx)
	})
	return conn, proxy
}

// A relay that has nothing to send notices that its Conn was closed, whether it leads or stands by, and others lead at once.
func TestRunEndsWithItsConnWhileIdle(t *testing.T) {
	t.Parallel()
	for name, lease := range map[string]time.Duration{"session": 0, "lease": 10 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			endWhileIdle(t, lease)
		})
	}
}

func endWhileIdle(t *testing.T, lease time.Duration) {
	url := testenv.Postgres(t)
	box := boxIn(t, newPool(t, url, nil), Config{Lanes: 2})
	in := newInbox(t)
	cfg := RelayConfig{PollInterval: time.Minute, Lease: lease} // nothing but the end of the Conn is to wake it
	conns, relays := make([]*reconnect.Conn, 2), make([]*running, 2)
	for i := range conns {
		conns[i], _ = dialed(t, testenv.Shared(t))
		relays[i] = relay(t, box, publisher(t, conns[i]), cfg)
		testenv.Eventually(t, patience, func() bool { return leadsAll(relays[0]) }, "the first one leads")
	}
	require.NoError(t, conns[1].Close(t.Context()))
	took := relays[1].endsWithin(t, patience)
	require.ErrorIs(t, relays[1].err, reconnect.ErrClosed, "it stood by")
	require.Less(t, took, atOnce)

	last, _ := dialed(t, testenv.Shared(t))
	require.NoError(t, conns[0].Close(t.Context()))
	took = relays[0].endsWithin(t, patience)
	require.ErrorIs(t, relays[0].err, reconnect.ErrClosed, "it led")
	require.Less(t, took, atOnce)
	// The server ends a session a moment after its connection.
	testenv.Eventually(t, patience, func() bool { return len(testenv.Sessions(t, url, "warren outbox relay")) == 0 }, "no session, and so no lead, is left")

	storeNumbered(t, box, in.queue, 0, 10)
	relay(t, box, publisher(t, last), RelayConfig{Lease: lease})
	drained(t, box)
	in.complete(t, 10)
	require.Zero(t, in.repeated())
}

// leadsAll reports whether r leads every lane.
func leadsAll(r *running) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.led == r.outbox.cfg.Lanes
}

// On a Conn that is closed already, or while the database is away, it is the same.
func TestRunOnAClosedConn(t *testing.T) {
	t.Parallel()
	away := newPool(t, "postgres://somebody@127.0.0.1:1/nowhere", nil)
	unreachable, err := New(away, Config{Logger: testenv.Logger(t.Output())})
	require.NoError(t, err)
	for name, box := range map[string]*Outbox{"with a database": newBox(t, Config{}), "without": unreachable} {
		conn, _ := dialed(t, testenv.Shared(t))
		pub := publisher(t, conn)
		r := relay(t, box, pub, RelayConfig{})
		require.NoError(t, conn.Close(t.Context()))
		require.Less(t, r.endsWithin(t, patience), atOnce, name)
		require.ErrorIs(t, r.err, reconnect.ErrClosed, name)
		start := time.Now()
		require.ErrorIs(t, r.Run(t.Context()), reconnect.ErrClosed, name)
		require.Less(t, time.Since(start), atOnce, name)
	}
}

// A Conn that is closed while rows flow: what was confirmed is deleted before somebody else leads, so that nothing comes twice.
func TestRunEndsWithItsConnInTheMiddle(t *testing.T) {
	t.Parallel()
	const rows = 3000
	box, in := newBox(t, Config{}), newInbox(t)
	first, _ := dialed(t, testenv.Shared(t))
	second, _ := dialed(t, testenv.Shared(t))
	closing := relay(t, box, publisher(t, first), RelayConfig{Batch: 50})
	testenv.Eventually(t, patience, func() bool { return leading(closing) }, "it leads")
	relay(t, box, publisher(t, second), RelayConfig{})
	storeNumbered(t, box, in.queue, 0, rows)
	testenv.Eventually(t, patience, func() bool { return in.count() > 100 }, "rows flow")
	require.NoError(t, first.Close(t.Context()))
	require.Less(t, closing.endsWithin(t, patience), atOnce)
	require.ErrorIs(t, closing.err, reconnect.ErrClosed)
	sent := in.count()
	drained(t, box)
	in.complete(t, rows)
	require.Equal(t, numbered("", rows), in.firsts())
	require.Zero(t, in.repeated())
	require.Empty(t, retries(t, box))
	t.Logf("%d had been sent when it ended", sent)
}

// A relay that is stopped while the broker is away has nothing to wait for.
func TestStopWhileTheBrokerIsAway(t *testing.T) {
	t.Parallel()
	box, in := newBox(t, Config{}), newInbox(t)
	conn, proxy := behind(t)
	r := relay(t, box, publisher(t, conn), RelayConfig{})
	storeNumbered(t, box, in.queue, 0, 1)
	drained(t, box)
	proxy.Refuse()
	proxy.Cut()
	testenv.Eventually(t, patience, func() bool { // else they might be written to it all the same
		return slices.ContainsFunc(conn.State(), func(s reconnect.State) bool { return s.Phase == "connecting" })
	}, "it knows that the connection is gone")
	storeNumbered(t, box, in.queue, 1, 100)
	testenv.Eventually(t, patience, func() bool { return r.trying() == 100 }, "it tries to send them")
	start := time.Now()
	require.NoError(t, r.stop(t), "nothing is out")
	require.Less(t, time.Since(start), atOnce)
	require.EqualValues(t, 100, waiting(t, box))
	require.Empty(t, retries(t, box))
}

// trying returns how many messages the publisher has been given, of all lanes, and has not come back with.
func (r *running) trying() (n int64) {
	r.metrics.mu.Lock()
	defer r.metrics.mu.Unlock()
	for l := range r.metrics.lanes {
		n += l.figures.unconfirmed.Load()
	}
	return n
}

// unanswered starts a relay whose messages, n of them from number 1 on, have come, and whose broker's answers are held back.
func unanswered(t *testing.T, box *Outbox, in *inbox, n int, cfg RelayConfig) (*running, *testenv.FaultProxy) {
	t.Helper()
	conn, proxy := behind(t)
	r := relay(t, box, publisher(t, conn), cfg)
	storeNumbered(t, box, in.queue, 0, 1)
	drained(t, box) // there is a channel to send on
	proxy.FreezeToClient()
	storeNumbered(t, box, in.queue, 1, n)
	testenv.Eventually(t, patience, func() bool { return in.count() == 1+n }, "they have come, and nobody says so")
	return r, proxy
}

// What was sent on a connection that is gone is not confirmed any more: it is not waited for.
func TestStopAfterALossInTheMiddle(t *testing.T) {
	t.Parallel()
	box, in := newBox(t, Config{}), newInbox(t)
	r, proxy := unanswered(t, box, in, 100, RelayConfig{})
	proxy.Refuse()
	proxy.Cut()
	start := time.Now()
	require.ErrorContains(t, r.stop(t), "stopped with 100 messages not confirmed", "they will be sent again")
	require.Less(t, time.Since(start), atOnce)
	require.EqualValues(t, 100, waiting(t, box))
}

// What is in doubt stays so while one message of it goes ahead to find out whether the outage is over: all of it will be sent
// again, and is counted.
func TestStopWhileOneGoesAhead(t *testing.T) {
	t.Parallel()
	box, in := newBox(t, Config{}), newInbox(t)
	conn, proxy := behind(t)
	hasty, err := conn.NewPublisher(reconnect.PublisherConfig{Window: 1000, Timeout: time.Second})
	require.NoError(t, err)
	pub := &counting{Publisher: hasty}
	r := relay(t, box, pub, RelayConfig{})
	storeNumbered(t, box, in.queue, 0, 1)
	drained(t, box)
	calls := pub.calls.Load()
	proxy.FreezeToClient()
	storeNumbered(t, box, in.queue, 1, 100)
	testenv.Eventually(t, patience, func() bool { return in.count() == 101 }, "they have come, and nobody says so")
	proxy.Refuse()
	proxy.Cut()
	testenv.Eventually(t, patience, func() bool { return pub.calls.Load() > calls+1 }, "one goes ahead")
	start := time.Now()
	require.ErrorContains(t, r.stop(t), "stopped with 100 messages not confirmed")
	require.Less(t, time.Since(start), atOnce)
	require.EqualValues(t, 100, waiting(t, box))
}

// The connection may be lost while a relay that was stopped waits: that is the end of the waiting, too.
func TestLossWhileStopping(t *testing.T) {
	t.Parallel()
	box, in := newBox(t, Config{}), newInbox(t)
	r, proxy := unanswered(t, box, in, 100, RelayConfig{})
	r.cancel()
	require.Never(t, r.isOver, 500*time.Millisecond, 50*time.Millisecond, "it waits")
	proxy.Refuse()
	proxy.Cut()
	start := time.Now()
	require.ErrorContains(t, r.stop(t), "stopped with 100 messages not confirmed")
	require.Less(t, time.Since(start), atOnce)
}

// What was sent on a connection that lives gets ShutdownTimeout, and what comes behind it is not sent any more.
func TestStopWaitsForWhatCanBeConfirmed(t *testing.T) {
	t.Parallel()
	box, in := newBox(t, Config{}), newInbox(t)
	r, proxy := unanswered(t, box, in, 100, RelayConfig{Batch: 200})
	storeNumbered(t, box, in.queue, 101, 50)
	r.cancel()
	require.Never(t, r.isOver, 500*time.Millisecond, 50*time.Millisecond, "it waits")
	proxy.Heal()
	require.NoError(t, r.stop(t))
	require.EqualValues(t, 50, waiting(t, box))
	in.complete(t, 101)
}

func (r *running) isOver() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

// A broker that is there and says nothing costs ShutdownTimeout when something is out, and nothing otherwise.
func TestStopWithAFrozenBroker(t *testing.T) {
	t.Parallel()
	const timeout = time.Second
	t.Run("busy", func(t *testing.T) {
		t.Parallel()
		box, in := newBox(t, Config{}), newInbox(t)
		r, proxy := unanswered(t, box, in, 100, RelayConfig{ShutdownTimeout: timeout})
		proxy.Freeze()
		start := time.Now()
		require.ErrorContains(t, r.stop(t), "100 messages not confirmed")
		took := time.Since(start)
		require.GreaterOrEqual(t, took, timeout)
		require.Less(t, took, 3*timeout)
		require.EqualValues(t, 100, waiting(t, box))
	})
	t.Run("idle", func(t *testing.T) {
		t.Parallel()
		box, in := newBox(t, Config{}), newInbox(t)
		r, proxy := unanswered(t, box, in, 0, RelayConfig{})
		proxy.Freeze()
		start := time.Now()
		require.NoError(t, r.stop(t))
		require.Less(t, time.Since(start), atOnce)
	})
	t.Run("never used", func(t *testing.T) { // a channel is asked for, and nothing was sent
		t.Parallel()
		box := newBox(t, Config{})
		conn, proxy := behind(t)
		r := relay(t, box, publisher(t, conn), RelayConfig{})
		proxy.Freeze()
		storeNumbered(t, box, "nobody's", 0, 10)
		testenv.Eventually(t, patience, func() bool { return r.trying() == 10 }, "it tries to send them")
		start := time.Now()
		require.NoError(t, r.stop(t))
		require.Less(t, time.Since(start), atOnce)
	})
}
