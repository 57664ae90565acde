package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/idempotency"
	"github.com/warrenmq/warren/internal/testenv"
)

// A20, P63: the answer to COMMIT is lost. The work was committed, and the next attempt, in the same call, finds that out.
func TestA20LostAnswerToCommit(t *testing.T) {
	t.Parallel()
	d, proxy := newProxiedDB(t)
	inbox := d.inbox("billing", idempotency.Config{})
	calls := 0
	cut := make(chan struct{})
	_, err := inbox.Do(t.Context(), "k", func(ctx context.Context, tx pgx.Tx) error {
		calls++
		if err := addA(ctx, tx); err != nil {
			return err
		}
		proxy.FreezeToClient() // what is sent arrives, what is answered does not
		go func() {
			defer close(cut)
			testenv.Eventually(t, patience, func() bool { return d.known() == 1 }, "COMMIT has arrived")
			proxy.Cut()
			proxy.Heal()
		}()
		return nil
	})
	<-cut
	require.NoError(t, err, "the second attempt found the key")
	require.Equal(t, 1, calls)
	require.Equal(t, 1, d.balance("a"))
}

// P64: what is no fault of the work is tried again whole, and is a "not now" in the end.
func TestP64CollisionsAreTriedAgain(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	inbox := d.inbox("billing", idempotency.Config{})
	for _, state := range []string{"40001", "40P01", "55P03", "57P01", "25P03", "25006", "53300", "08006", "58030"} {
		t.Run(state, func(t *testing.T) {
			raise := func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, fmt.Sprintf("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '%s', MESSAGE = 'auf Deutsch'; END $$", state))
				return fmt.Errorf("book: %w", err)
			}
			calls := 0
			fresh, err := inbox.Do(t.Context(), "passes "+state, func(ctx context.Context, tx pgx.Tx) error {
				if calls++; calls < 3 {
					return raise(ctx, tx)
				}
				return addA(ctx, tx)
			})
			require.NoError(t, err)
			require.True(t, fresh)
			require.Equal(t, 3, calls)

			calls = 0
			_, err = inbox.Do(t.Context(), "stays "+state, func(ctx context.Context, tx pgx.Tx) error { calls++; return raise(ctx, tx) })
			require.True(t, notNow(err), "%v", err)
			require.Equal(t, state, code(err))
			require.Equal(t, 3, calls)
			require.Zero(t, d.number("SELECT count(*) FROM inbox WHERE key = $1", "stays "+state))
		})
	}
	t.Run("a session that was ended, and what that cancelled", func(t *testing.T) {
		_, err := inbox.Do(t.Context(), "cancelled", func(ctx context.Context, tx pgx.Tx) error {
			require.NoError(t, shoot(d, tx))
			_, err := tx.Exec(ctx, "SELECT 1")
			return errors.Join(err, context.Canceled)
		})
		require.True(t, notNow(err), "%v", err)
	})
	for _, state := range []string{"23505", "22012", "42P01", "57014", "P0001"} { // the work's own
		t.Run(state, func(t *testing.T) {
			calls := 0
			_, err := inbox.Do(t.Context(), "own "+state, func(ctx context.Context, tx pgx.Tx) error {
				calls++
				return &pgconn.PgError{Code: state}
			})
			require.Equal(t, state, code(err))
			require.False(t, notNow(err))
			require.Equal(t, 1, calls)
		})
	}
}

// P64: a function that swallows a statement's error does not get its message acknowledged: PostgreSQL makes a rollback of that
// COMMIT, and refuses any statement before. The error may have been a collision, so it is tried again; when it is so each time it
// is a failure as any other.
func TestP64SwallowedErrors(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	inbox := d.inbox("billing", idempotency.Config{})
	for name, want := range map[string]error{"and returns": pgx.ErrTxCommitRollback, "and returns the next": nil} {
		t.Run(name, func(t *testing.T) {
			before, calls := d.balance("a"), 0
			swallow := func(times int) func(ctx context.Context, tx pgx.Tx) error {
				calls = 0
				return func(ctx context.Context, tx pgx.Tx) error {
					calls++
					if err := addA(ctx, tx); err != nil || calls > times {
						return err
					}
					_, _ = tx.Exec(ctx, "INSERT INTO accounts VALUES ('a')") // 23505
					_, err := tx.Exec(ctx, "SELECT 1")
					require.Equal(t, "25P02", code(err))
					if want == nil {
						return err
					}
					return nil
				}
			}
			_, err := inbox.Do(t.Context(), "always "+name, swallow(1000))
			require.True(t, want == nil && code(err) == "25P02" || errors.Is(err, want), "%v", err)
			require.False(t, notNow(err))
			require.Equal(t, 3, calls)
			require.Equal(t, before, d.balance("a"))

			fresh, err := inbox.Do(t.Context(), "once "+name, swallow(1))
			require.NoError(t, err)
			require.True(t, fresh)
			require.Equal(t, 2, calls)
			require.Equal(t, before+1, d.balance("a"))
		})
	}
	require.Equal(t, 2, d.known(), "nothing of those that failed")
}

// P64: two handlers that lock the same rows in opposite order, each when the other one has its first. PostgreSQL breaks the
// deadlock, and nobody sees it.
func TestP64Deadlocks(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	d.exec(fmt.Sprintf("ALTER DATABASE %s SET deadlock_timeout = '20ms'", databaseOf(d)))
	d.pool.Reset()
	inbox := d.inbox("billing", idempotency.Config{})
	order := [2][2]string{{"a", "b"}, {"b", "a"}}
	locked := [2]chan struct{}{make(chan struct{}), make(chan struct{})}
	var calls [2]int
	var deadlocks atomic.Int32
	errs := all(2, func(i int) error {
		_, err := inbox.Do(t.Context(), fmt.Sprint(i), func(ctx context.Context, tx pgx.Tx) error {
			calls[i]++
			if err := add(ctx, tx, order[i][0]); err != nil {
				return err
			}
			if calls[i] == 1 {
				close(locked[i])
				<-locked[1-i]
			}
			err := add(ctx, tx, order[i][1])
			if code(err) == "40P01" {
				deadlocks.Add(1)
			}
			return err
		})
		return err
	})
	require.NoError(t, errors.Join(errs...))
	broken := int(deadlocks.Load()) // the one that tries again may be in the other's way once more
	require.GreaterOrEqual(t, broken, 1)
	require.Equal(t, 2+broken, calls[0]+calls[1])
	require.Equal(t, 2, d.balance("a"))
	require.Equal(t, 2, d.balance("b"))
}

func databaseOf(d *db) (name string) {
	d.direct(func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT quote_ident(current_database())").Scan(&name)
	})
	return name
}

// A pool whose connections have all died in its hands: the next call does not notice.
func TestDeadConnections(t *testing.T) {
	t.Parallel()
	d, proxy := newProxiedDB(t)
	inbox := d.inbox("billing", idempotency.Config{})
	for i := range 5 {
		all(3, func(n int) error {
			_, err := inbox.Do(t.Context(), fmt.Sprint("warm up", i, n), addA)
			return err
		})
		proxy.Cut()
		fresh, err := inbox.Do(t.Context(), fmt.Sprint(i), addA)
		require.True(t, err == nil && fresh || notNow(err), "%v", err)
		if err != nil { // as many dead connections as attempts
			_, err = inbox.Do(t.Context(), fmt.Sprint(i), addA)
			require.NoError(t, err)
		}
	}
	require.Equal(t, d.number("SELECT count(*) FROM inbox"), d.balance("a"))
}

// A database that is frozen answers nothing: a call ends with its context, and says "not now", before its function has run and
// while it runs, also when the function is the one that gives up; the message's time was not used up by the message.
func TestFrozenDatabase(t *testing.T) {
	t.Parallel()
	d, proxy := newProxiedDB(t)
	inbox := d.inbox("billing", idempotency.Config{})
	const short = 300 * time.Millisecond
	for _, tt := range []struct {
		name         string
		time, inside time.Duration // of the call, and of the function
		freeze       bool          // before the call
	}{
		{"before", short, patience, true},
		{"inside", short, patience, false},
		{"inside a function that gives up", patience, short, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			defer proxy.Heal()
			if tt.freeze {
				proxy.Freeze()
			}
			began := time.Now()
			_, err := inbox.Do(within(t, tt.time), tt.name, func(ctx context.Context, tx pgx.Tx) error {
				proxy.Freeze()
				ctx, cancel := context.WithTimeout(ctx, tt.inside)
				defer cancel()
				return addA(ctx, tx)
			})
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.True(t, notNow(err), "%v", err)
			took(t, began, short+2*time.Second, "a call of 300 ms, with a question whether anybody is there")
			proxy.Heal()
			fresh, err := inbox.Do(t.Context(), tt.name, addA)
			require.NoError(t, err)
			require.True(t, fresh)
		})
	}
	require.Equal(t, 3, d.balance("a"))
}

// Another copy's session is frozen with the key in its hands: the wait is bounded.
func TestFrozenRival(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	inbox := d.inbox("billing", idempotency.Config{LockTimeout: 200 * time.Millisecond})
	rival, err := d.pool.Begin(t.Context())
	require.NoError(t, err)
	defer rival.Rollback(context.Background())
	fresh, err := inbox.Claim(t.Context(), rival, "k")
	require.NoError(t, err)
	require.True(t, fresh)
	thaw := testenv.FreezeBackend(t, d.url, int(rival.Conn().PgConn().PID()))
	tookOnce(t, 500*time.Millisecond, "a LockTimeout of 200 ms", func() time.Duration {
		began := time.Now()
		_, err = inbox.Do(t.Context(), "k", addA)
		measured := time.Since(began)
		require.ErrorIs(t, err, idempotency.ErrBusy)
		require.True(t, notNow(err))
		require.GreaterOrEqual(t, measured, 200*time.Millisecond)
		return measured
	})
	thaw()
	require.NoError(t, rival.Rollback(t.Context()))
	fresh, err = inbox.Do(t.Context(), "k", addA)
	require.NoError(t, err)
	require.True(t, fresh)
}
