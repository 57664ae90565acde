package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
)

func TestRelaySendsInOrderAndDeletes(t *testing.T) {
	t.Parallel()
	box, pub := newBox(t, Config{}), new(fake)
	before := numbered("before.", 700)
	store(t, box, before...)
	r := relay(t, box, pub, RelayConfig{Batch: 100})
	drained(t, box)
	after := numbered("after.", 30)
	for _, key := range after {
		store(t, box, key)
	}
	drained(t, box)
	require.Equal(t, append(before, after...), pub.sent())
	require.NoError(t, r.stop(t))
	for _, n := range pub.calledWith() {
		require.LessOrEqual(t, n, 100)
	}
}

func TestNewRelaySaysEverythingAtOnce(t *testing.T) {
	_, err := NewRelay(nil, nil, RelayConfig{Batch: 2001, MaxAttempts: -2, BackoffMin: time.Minute, BackoffMax: time.Second,
		PollInterval: -1, ShutdownTimeout: -2, Lease: time.Millisecond})
	for _, field := range []string{"outbox: nil", "publisher: nil", "Batch: 2001", "MaxAttempts: -2", "BackoffMax: 1s", "PollInterval: -1",
		"ShutdownTimeout: -2", "Lease: 1ms"} {
		require.ErrorContains(t, err, field)
	}
	box, err := New(nil, Config{})
	require.NoError(t, err)
	_, err = NewRelay(box, new(fake), RelayConfig{})
	require.ErrorContains(t, err, "pool: nil")
}

func TestRunIsForOneAtATime(t *testing.T) {
	t.Parallel()
	box := newBox(t, Config{})
	r := relay(t, box, new(fake), RelayConfig{})
	testenv.Eventually(t, patience, r.running.Load, "Run has begun")
	require.ErrorContains(t, r.Run(t.Context()), "running already")
	require.NoError(t, r.stop(t))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, r.Run(ctx), "again, afterwards")
}

// A row that fails steps aside and is tried again with a growing delay; in the end it is parked.
func TestP58AFailingRowStepsAside(t *testing.T) {
	t.Parallel()
	box, pub := newBox(t, Config{}), new(fake)
	bad := errors.New("the broker does not like it")
	pub.set(each(func(m reconnect.Message) error {
		if m.Key == "bad" {
			return bad
		}
		return nil
	}))
	store(t, box, "a", "bad", "b")
	relay(t, box, pub, RelayConfig{MaxAttempts: 3, BackoffMin: 50 * time.Millisecond})
	store(t, box, "c")
	testenv.Eventually(t, patience, func() bool { s := stats(t, box); return s.Parked == 1 && s.Waiting == 0 }, "it is parked")
	require.Equal(t, []string{"a", "b", "c"}, pub.sent())
	require.Zero(t, stats(t, box).Retrying)
	for p, err := range box.Parked(t.Context()) {
		require.NoError(t, err)
		require.Equal(t, "bad", p.Key)
		require.Equal(t, 3, p.Attempts)
		require.Contains(t, p.Reason, bad.Error())
		pub.set(nil)
		require.NoError(t, box.Requeue(t.Context(), p.ID))
	}
	drained(t, box)
	require.Equal(t, []string{"a", "b", "c", "bad"}, pub.sent())
}

func stats(t testing.TB, box *Outbox) Stats {
	t.Helper()
	s, err := box.Stats(context.Background())
	require.NoError(t, err)
	return s
}

// A19, P53: a row whose transaction commits late is sent as soon as it can be seen, and a transaction that stays open
// delays nothing but its own rows.
func TestA19P53LateRowsAreNotSkipped(t *testing.T) {
	t.Parallel()
	for _, fresh := range []bool{true, false} {
		t.Run(fmt.Sprintf("new leader %v", fresh), func(t *testing.T) {
			t.Parallel()
			box, pub := newBox(t, Config{}), new(fake)
			if !fresh {
				relay(t, box, pub, RelayConfig{PollInterval: time.Minute})
				store(t, box, "first")
				testenv.Eventually(t, patience, func() bool { return len(pub.sent()) == 1 }, "the relay runs")
				byCursor(t, box) // after the horizon has passed
			}
			tx, err := box.pool.Begin(t.Context())
			require.NoError(t, err)
			require.NoError(t, box.Enqueue(t.Context(), tx, Message{Key: "late"}))
			store(t, box, numbered("early.", 20)...)
			if fresh {
				relay(t, box, pub, RelayConfig{PollInterval: time.Minute})
			}
			testenv.Eventually(t, patience, func() bool { return slices.Contains(pub.sent(), "early.19") }, "others are not delayed")
			require.NotContains(t, pub.sent(), "late")
			require.NoError(t, tx.Commit(t.Context()))
			start := time.Now()
			box.Wake()
			testenv.Eventually(t, patience, func() bool { return slices.Contains(pub.sent(), "late") }, "it is sent after its commit")
			t.Logf("sent %v after the commit", time.Since(start).Round(time.Millisecond))
		})
	}
}

// byCursor waits until every transaction that ran before has certainly ended for the relay's tracker, by keeping it busy.
func byCursor(t testing.TB, box *Outbox) {
	t.Helper()
	end := time.Now().Add(settleTime + 500*time.Millisecond)
	testenv.Eventually(t, patience, func() bool { box.Wake(); return time.Now().After(end) }, "the horizon passes")
}

func TestNotBefore(t *testing.T) {
	t.Parallel()
	box, pub := newBox(t, Config{}), new(fake)
	var sent sync.Map // when, by key
	pub.set(each(func(m reconnect.Message) error { sent.LoadOrStore(m.Key, time.Now()); return nil }))
	relay(t, box, pub, RelayConfig{PollInterval: 200 * time.Millisecond})
	var first, second time.Time
	require.NoError(t, box.InTx(t.Context(), func(tx pgx.Tx) error {
		first = time.Now().Add(1500 * time.Millisecond) // only now: the connection may have taken long
		second = first.Add(300 * time.Millisecond)
		return box.Enqueue(t.Context(), tx, Message{Key: "second", NotBefore: second}, Message{Key: "first", NotBefore: first}, Message{Key: "now"})
	}))
	testenv.Eventually(t, patience, func() bool { return len(pub.sent()) == 3 }, "all are sent")
	require.Equal(t, []string{"now", "first", "second"}, pub.sent())
	for key, due := range map[string]time.Time{"first": first, "second": second} {
		at, _ := sent.Load(key)
		require.False(t, at.(time.Time).Before(due), "%s was %v early", key, due.Sub(at.(time.Time)))
	}
	require.Zero(t, stats(t, box).Scheduled)
}

func TestArchiveKeepsWhatWasSent(t *testing.T) {
	t.Parallel()
	box, pub := newBox(t, Config{Archive: true}), new(fake)
	relay(t, box, pub, RelayConfig{})
	store(t, box, "a", "b")
	drained(t, box)
	require.EqualValues(t, 2, scan[int64](t, box.pool, "SELECT count(*) FROM outbox_archive WHERE sent_at >= created_at"))
	require.Zero(t, scan[int64](t, box.pool, "SELECT count(*) FROM outbox_archive_default"), "today has a partition")
}

func TestLanesNoLongerConfiguredAreSent(t *testing.T) {
	t.Parallel()
	pool := newPool(t, testenv.Postgres(t), nil)
	wide, narrow, pub := boxIn(t, pool, Config{Lanes: 4}), boxIn(t, pool, Config{}), new(fake)
	for i := range 20 {
		storeAll(t, wide, Message{Key: fmt.Sprint(i), OrderingKey: fmt.Sprint(i)})
	}
	relay(t, narrow, pub, RelayConfig{})
	drained(t, wide)
	require.Len(t, pub.sent(), 20)
}

func TestRunBeforeTheTablesAreThere(t *testing.T) {
	t.Parallel()
	pool := newPool(t, testenv.Postgres(t), nil)
	box, err := New(pool, Config{Schema: "Later \"than\" this"})
	require.NoError(t, err)
	pub := new(fake)
	relay(t, box, pub, RelayConfig{})
	require.NoError(t, box.Migrate(t.Context()))
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return box.Enqueue(t.Context(), tx, Message{Key: "a"}) }))
	drained(t, box)
	require.Equal(t, []string{"a"}, pub.sent())
}

// The rights that the package's documentation names are enough for a relay.
func TestRightsOfARelay(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	owner := newPool(t, url, nil)
	box := boxIn(t, owner, Config{})
	name, pool := role(t, owner)
	exec(t, owner, fmt.Sprintf("GRANT SELECT, INSERT, UPDATE, DELETE ON outbox, outbox_retry, outbox_parked, outbox_scheduled, outbox_lease, outbox_archive TO %[1]s;"+
		" GRANT SELECT ON outbox_schema TO %[1]s", name))
	var log logged
	defer func() { require.NotContains(t, log.String(), "may not see") }()
	plain, err := New(pool, Config{Logger: testenv.Logger(&log)})
	require.NoError(t, err)
	for _, cfg := range []RelayConfig{{MaxAttempts: 2, BackoffMin: time.Millisecond}, {Lease: time.Second}} {
		pub := new(fake)
		pub.set(each(func(m reconnect.Message) error {
			if m.Key == "bad" && cfg.Lease == 0 {
				return errors.New("no")
			}
			return nil
		}))
		r := relay(t, plain, pub, cfg)
		storeAll(t, box, Message{Key: "a"}, Message{Key: "bad"}, Message{Key: "later", NotBefore: time.Now().Add(time.Second)})
		testenv.Eventually(t, patience, func() bool { s := stats(t, box); return s.Waiting+s.Scheduled == 0 }, "all are settled")
		require.Contains(t, pub.sent(), "later")
		require.NoError(t, r.stop(t))
	}
	require.EqualValues(t, 1, stats(t, box).Parked)
}

// A publisher that is closed cannot send any more: Run ends, and what was not sent stays.
func TestRunEndsWithItsPublisher(t *testing.T) {
	t.Parallel()
	box, pub := newBox(t, Config{Lanes: 2}), new(fake)
	pub.set(each(func(reconnect.Message) error { return reconnect.ErrClosed }))
	r := relay(t, box, pub, RelayConfig{})
	store(t, box, "a")
	<-r.ended
	require.ErrorIs(t, r.err, reconnect.ErrClosed)
	require.EqualValues(t, 1, waiting(t, box))
}

// When confirmations do not come, Run waits for them no longer than ShutdownTimeout, and says how many are open.
func TestStopWithoutConfirmations(t *testing.T) {
	t.Parallel()
	box, pub := newBox(t, Config{}), new(fake)
	pub.set(func(ctx context.Context, msgs []reconnect.Message) error {
		<-ctx.Done()
		errs := make(reconnect.BatchError, len(msgs))
		for i := range errs {
			errs[i] = fmt.Errorf("%w: %w", reconnect.ErrUnknown, ctx.Err())
		}
		return errs
	})
	r := relay(t, box, pub, RelayConfig{ShutdownTimeout: 300 * time.Millisecond})
	store(t, box, "a", "b")
	testenv.Eventually(t, patience, func() bool { return len(pub.calledWith()) == 1 }, "it sends")
	start := time.Now()
	require.ErrorContains(t, r.stop(t), "2 messages not confirmed")
	require.GreaterOrEqual(t, time.Since(start), 300*time.Millisecond)
	require.EqualValues(t, 2, waiting(t, box))
}

// What is being sent when Run's context ends is confirmed and deleted first; what was only fetched stays.
func TestStopInGoodOrder(t *testing.T) {
	t.Parallel()
	box, pub := newBox(t, Config{}), new(fake)
	hold := make(chan struct{})
	pub.set(func(context.Context, []reconnect.Message) error { <-hold; return nil })
	r := relay(t, box, pub, RelayConfig{Batch: 4})
	store(t, box, "a", "b", "c", "d", "e")
	testenv.Eventually(t, patience, func() bool { return len(pub.calledWith()) == 1 }, "it sends")
	r.cancel()
	close(hold)
	require.NoError(t, r.stop(t))
	require.Equal(t, []string{"a", "b"}, pub.sent())
	require.EqualValues(t, 3, waiting(t, box))
}
