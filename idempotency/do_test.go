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

func TestDo(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	inbox := d.inbox("billing", idempotency.Config{})
	for try, want := range []bool{true, false, false} {
		fresh, err := inbox.Do(t.Context(), "payment-1", addA)
		require.NoError(t, err)
		require.Equal(t, want, fresh, "call %d", try)
	}
	require.Equal(t, 1, d.balance("a"))

	// P65: another consumer with the same id has not seen it.
	other := d.inbox("statistics", idempotency.Config{})
	fresh, err := other.Do(t.Context(), "payment-1", addA)
	require.NoError(t, err)
	require.True(t, fresh)
	require.Equal(t, 2, d.balance("a"))
	require.Zero(t, d.pool.Stat().AcquiredConns(), "every connection is back in the pool")
}

// A20, and target 13 of the design notes: sixteen copies over sixteen workers, at each isolation level, also when the first
// one to get through fails, panics or has its session killed: the effect is there once, and every copy that was told it is
// done was told the truth.
func TestA20SixteenCopiesAtOnce(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		inbox := d.inbox("billing", idempotency.Config{IsoLevel: level, LockTimeout: patience})
		for name, fail := range map[string]func(tx pgx.Tx) error{
			"all go well":       nil,
			"the first fails":   func(pgx.Tx) error { return errWork },
			"the first panics":  func(pgx.Tx) error { panic("work") },
			"the first is shot": func(tx pgx.Tx) error { return shoot(d, tx) },
		} {
			t.Run(fmt.Sprintf("%s, %s", level, name), func(t *testing.T) {
				key := t.Name()
				d.exec("INSERT INTO accounts VALUES ($1)", key)
				var calls, committed atomic.Int32
				work := func(ctx context.Context, tx pgx.Tx) error {
					first := calls.Add(1) == 1
					if err := add(ctx, tx, key); err != nil {
						return err
					}
					if first && fail != nil {
						return fail(tx)
					}
					return nil
				}
				for range 10 { // redeliveries, as a broker makes them, until every copy is acknowledged
					errs := all(16, func(int) error {
						return recovering(func() error {
							fresh, err := inbox.Do(t.Context(), key, work)
							if err == nil && d.balance(key) != 1 {
								t.Error("told that it is done, when it is not")
							}
							if fresh {
								committed.Add(1)
							}
							return err
						})
					})
					if errors.Join(errs...) == nil {
						break
					}
				}
				require.Equal(t, 1, d.balance(key))
				require.EqualValues(t, 1, committed.Load(), "calls that said fresh")
				require.Equal(t, 1, d.number("SELECT count(*) FROM inbox WHERE key = $1", key))
			})
		}
	}
}

// shoot ends the transaction's session, as an administrator does.
func shoot(d *db, tx pgx.Tx) error {
	testenv.TerminateBackends(d.t, d.url, int(tx.Conn().PgConn().PID()))
	return nil // the handler knows nothing of it
}

// P63: a handler that writes and then fails leaves neither key nor effect, and the next delivery succeeds.
func TestP63FailedWorkLeavesNothing(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	inbox := d.inbox("billing", idempotency.Config{})
	for name, fail := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"error": func(context.Context, pgx.Tx) error { return errWork },
		"panic": func(context.Context, pgx.Tx) error { panic("work") },
		"shot each time, and the handler notices": func(ctx context.Context, tx pgx.Tx) error {
			require.NoError(t, shoot(d, tx))
			_, err := tx.Exec(ctx, "SELECT 1")
			return err
		},
		"shot each time, and the handler does not notice": func(_ context.Context, tx pgx.Tx) error { return shoot(d, tx) },
		"tries to commit":    func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
		"hides that it did":  func(ctx context.Context, tx pgx.Tx) error { _ = tx.Commit(ctx); return nil },
		"rolls back":         func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
		"hides that it does": func(ctx context.Context, tx pgx.Tx) error { _ = tx.Rollback(ctx); return nil },
		"context ends": func(ctx context.Context, tx pgx.Tx) error {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
			defer cancel()
			_, err := tx.Exec(ctx, "SELECT pg_sleep(60)")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := d.balance("a")
			err := recovering(func() error {
				_, err := inbox.Do(t.Context(), name, func(ctx context.Context, tx pgx.Tx) error {
					return errors.Join(addA(ctx, tx), fail(ctx, tx))
				})
				return err
			})
			require.Error(t, err)
			require.Equal(t, before, d.balance("a"))
			require.Zero(t, d.number("SELECT count(*) FROM inbox WHERE key = $1", name))
			fresh, err := inbox.Do(t.Context(), name, addA)
			require.NoError(t, err)
			require.True(t, fresh)
			require.Equal(t, before+1, d.balance("a"))
		})
	}
	testenv.Eventually(t, patience, func() bool { return d.pool.Stat().AcquiredConns() == 0 }, "connections are back")
}

// The errors of a function are its own: returned as they are.
func TestErrorsOfTheWorkAreKept(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	inbox := d.inbox("billing", idempotency.Config{})
	calls := 0
	_, err := inbox.Do(t.Context(), "k", func(context.Context, pgx.Tx) error { calls++; return errWork })
	require.Same(t, errWork, err)
	require.Equal(t, 1, calls)

	_, err = inbox.Do(t.Context(), "k", func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO accounts VALUES ('a')")
		return err
	})
	var duplicate *pgconn.PgError
	require.ErrorAs(t, err, &duplicate)
	require.Equal(t, "23505", duplicate.Code)
	require.False(t, notNow(err), "a mistake of the work is no excuse of the database's")
}

// A deferred constraint speaks at COMMIT: then nothing was committed, and trying again would not help.
func TestDeferredConstraint(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	inbox := d.inbox("billing", idempotency.Config{})
	d.exec("CREATE TABLE entries (account text REFERENCES accounts DEFERRABLE INITIALLY DEFERRED)")
	calls := 0
	_, err := inbox.Do(t.Context(), "k", func(ctx context.Context, tx pgx.Tx) error {
		calls++
		_, err := tx.Exec(ctx, "INSERT INTO entries VALUES ('nobody')")
		return err
	})
	require.ErrorContains(t, err, "23503")
	require.False(t, notNow(err))
	require.Equal(t, 1, calls)
	require.Zero(t, d.known())
}

// ErrDone: the function found out by itself.
func TestErrDone(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	inbox := d.inbox("billing", idempotency.Config{})
	done := func(ctx context.Context, tx pgx.Tx) error {
		return errors.Join(addA(ctx, tx), fmt.Errorf("invoice 17: %w", idempotency.ErrDone))
	}
	_, err := inbox.Do(t.Context(), "k", done)
	require.Error(t, err, "joined with others it does not speak for them")
	fresh, err := inbox.Do(t.Context(), "k", func(ctx context.Context, tx pgx.Tx) error {
		require.NoError(t, addA(ctx, tx))
		return fmt.Errorf("invoice 17: %w", idempotency.ErrDone)
	})
	require.NoError(t, err)
	require.False(t, fresh)
	require.Zero(t, d.balance("a"), "rolled back")
}

// Savepoints are the function's to end.
func TestSavepoints(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	inbox := d.inbox("billing", idempotency.Config{})
	_, err := inbox.Do(t.Context(), "k", func(ctx context.Context, tx pgx.Tx) error {
		err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { return errors.Join(addA(ctx, tx), errWork) })
		require.ErrorIs(t, err, errWork)
		return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { return add(ctx, tx, "b") })
	})
	require.NoError(t, err)
	require.Zero(t, d.balance("a"))
	require.Equal(t, 1, d.balance("b"))
}

// COMMIT goes its way although the context has ended: the work is done, and would be done again.
func TestCommitOutlivesTheContext(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	inbox := d.inbox("billing", idempotency.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	fresh, err := inbox.Do(ctx, "k", func(ctx context.Context, tx pgx.Tx) error {
		defer cancel()
		return addA(ctx, tx)
	})
	require.NoError(t, err)
	require.True(t, fresh)
	require.Equal(t, 1, d.balance("a"))

	_, err = inbox.Do(ctx, "other", addA)
	require.ErrorIs(t, err, context.Canceled)
	require.True(t, notNow(err), "nothing was begun: %v", err)
}

func TestRoundTrips(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	counted := newCountedPool(t, d)
	inbox, err := idempotency.New(counted.pool, "billing", idempotency.Config{})
	require.NoError(t, err)
	require.NoError(t, inbox.Migrate(t.Context()))
	do := func(key string) func() {
		return func() {
			_, err := inbox.Do(t.Context(), key, addA)
			require.NoError(t, err)
		}
	}
	do("warm up: statements are prepared")()
	do("warm up: statements are prepared")()
	require.Equal(t, 3, counted.during(do("new")), "BEGIN with the claim, work, COMMIT")
	require.Equal(t, 2, counted.during(do("new")), "known: BEGIN with the claim, ROLLBACK")
}
