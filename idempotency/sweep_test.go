package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/idempotency"
	"github.com/warrenmq/warren/internal/testenv"
)

// runInbox runs inbox.Run until the returned function is called.
func runInbox(t *testing.T, inbox *idempotency.Inbox) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- inbox.Run(ctx) }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(t, <-done)
		}
	}
	t.Cleanup(stop)
	return stop
}

// fill records n keys of a consumer that are so old.
func (d *db) fill(consumer string, n int, age time.Duration) {
	d.t.Helper()
	d.exec("INSERT INTO inbox (consumer, key, done_at) SELECT $1, $2 || i, now() - $3::interval FROM generate_series(1, $4::int) AS i",
		consumer, fmt.Sprint(age, "-"), age, n)
}

// Retention: what is older goes, in steps, by several instances that share the work; what is younger and what is another
// consumer's stays.
func TestRetention(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	cfg := idempotency.Config{Retention: time.Hour}
	inbox, second := d.inbox("billing", cfg), d.inbox("billing", cfg)
	const many = 20_000 // more than one step
	d.fill("billing", many, 2*time.Hour)
	d.fill("billing", 10, 55*time.Minute)
	d.fill("other", 10, 1000*time.Hour)
	_, err := inbox.Do(t.Context(), "now", addA)
	require.NoError(t, err)
	runInbox(t, inbox)
	runInbox(t, second)
	testenv.Eventually(t, patience, func() bool { return d.number("SELECT count(*) FROM inbox WHERE consumer = 'billing'") == 11 }, "old keys go")
	require.Equal(t, 10, d.number("SELECT count(*) FROM inbox WHERE consumer = 'other'"))
	require.Zero(t, d.number("SELECT block FROM inbox_sweep WHERE consumer = 'billing'"), "it begins at the front again")
	fresh, err := inbox.Do(t.Context(), "now", addA)
	require.NoError(t, err)
	require.False(t, fresh)
}

// A key is never forgotten early, and soon after its time, while its message comes again and again, from several sides at
// once, and two instances remove what is old: then it takes effect again. The retention is the promise.
func TestRetentionIsNeverShort(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	const keys, times = 4, 2
	cfg := idempotency.Config{Retention: time.Second, LockTimeout: patience}
	inbox := d.inbox("billing", cfg)
	d.exec("CREATE TABLE effects (key text, began timestamptz, done timestamptz)")
	runInbox(t, inbox)
	runInbox(t, d.inbox("billing", cfg))
	ctx := within(t, patience)
	var effects atomic.Int64
	errs := all(2*keys, func(i int) error {
		key := fmt.Sprint(i % keys)
		for n := 0; n < times; {
			began := time.Now()
			fresh, err := inbox.Do(ctx, key, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "INSERT INTO effects VALUES ($1, $2, clock_timestamp())", key, began)
				return err
			})
			if err != nil {
				return err
			}
			if fresh {
				effects.Add(1)
			}
			n = d.number("SELECT count(*) FROM effects WHERE key = $1", key)
		}
		return nil
	})
	require.NoError(t, errors.Join(errs...))
	require.EqualValues(t, d.number("SELECT count(*) FROM effects"), effects.Load())
	require.Zero(t, d.number(`SELECT count(*) FROM
		(SELECT done - lag(began) OVER (PARTITION BY key ORDER BY done) AS apart FROM effects) AS e WHERE apart < interval '1s'`))
}

// Target 12: claims do not wait for the removal. Even while a step is held open in the middle, new keys and known ones pass; only
// a key that is being removed waits, bounded by LockTimeout.
func TestRemovalDoesNotBlockClaims(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	inbox := d.inbox("billing", idempotency.Config{Retention: time.Hour, LockTimeout: 100 * time.Millisecond})
	d.fill("billing", 100, 2*time.Hour)
	_, err := inbox.Do(t.Context(), "known", addA)
	require.NoError(t, err)
	held := testenv.HoldTransaction(t, d.url, "DELETE FROM inbox WHERE done_at < now() - interval '1 hour'")
	for i := range 20 {
		began := time.Now()
		fresh, err := inbox.Do(t.Context(), fmt.Sprint("new ", i), addA)
		require.NoError(t, err)
		require.True(t, fresh)
		fresh, err = inbox.Do(t.Context(), "known", addA)
		require.NoError(t, err)
		require.False(t, fresh)
		require.Less(t, time.Since(began), 5*time.Second)
	}
	_, err = inbox.Do(t.Context(), "2h0m0s-7", addA)
	require.ErrorIs(t, err, idempotency.ErrBusy)
	held.Commit()
	fresh, err := inbox.Do(t.Context(), "2h0m0s-7", addA)
	require.NoError(t, err)
	require.True(t, fresh)

	// And the removal waits for nobody: rows that are locked are left for the next time.
	d.fill("billing", 100, 3*time.Hour)
	testenv.HoldTransaction(t, d.url, "SELECT FROM inbox WHERE key = '3h0m0s-7' FOR UPDATE")
	runInbox(t, inbox)
	testenv.Eventually(t, patience, func() bool {
		return d.number("SELECT count(*) FROM inbox WHERE done_at < now() - interval '1 hour'") == 1
	},
		"all go but the one that is locked")
}

// Run outlives its database, and a table that is not there yet.
func TestRunGoesOn(t *testing.T) {
	t.Parallel()
	d, proxy := newProxiedDB(t)
	inbox, err := idempotency.New(d.pool, "billing", idempotency.Config{Retention: time.Second, Logger: quiet})
	require.NoError(t, err)
	stop := runInbox(t, inbox)
	require.NoError(t, inbox.Migrate(within(t, patience)))
	d.fill("billing", 10, time.Hour)
	testenv.Eventually(t, patience, func() bool { return d.known() == 0 }, "once there is a table")
	proxy.Refuse()
	proxy.Cut()
	d.fill("billing", 10, time.Hour)
	proxy.Heal()
	testenv.Eventually(t, patience, func() bool { return d.known() == 0 }, "once the database is back")
	proxy.Freeze()
	began := time.Now()
	stop()
	took(t, began, 2*time.Second, "a stop on a frozen database")
	proxy.Heal()
}

func TestRunForEver(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	inbox := d.inbox("billing", idempotency.Config{Retention: -1})
	d.fill("billing", 1, 100_000*time.Hour)
	runInbox(t, inbox)()
	require.Equal(t, 1, d.known())
	require.Zero(t, d.number("SELECT count(*) FROM inbox_sweep"))
}

// The plan of a step looks at the blocks of the step and at nothing else.
func TestSweepReadsOnlyItsBlocks(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	d.inbox("billing", idempotency.Config{})
	d.fill("billing", 50_000, time.Minute)
	d.exec("VACUUM ANALYZE inbox")
	d.direct(func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, idempotency.ExplainRemoval, "billing", "(64,0)", "(128,0)", time.Hour)
		if err != nil {
			return err
		}
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		t.Log(plan)
		require.Contains(t, fmt.Sprint(plan), "Tid Range Scan on inbox")
		require.NotContains(t, fmt.Sprint(plan), "Seq Scan")
		return nil
	})
}
