package idempotency_test

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/idempotency"
)

func TestDoResult(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	inbox := d.inbox("charge", idempotency.Config{})
	calls := 0
	charge := func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		calls++
		return fmt.Appendf(nil, "receipt %d", calls), addA(ctx, tx)
	}
	for range 3 {
		result, err := inbox.DoResult(t.Context(), "k", []byte("10 EUR"), charge)
		require.NoError(t, err)
		require.Equal(t, "receipt 1", string(result))
	}
	require.Equal(t, 1, calls)
	require.Equal(t, 1, d.balance("a"))

	_, err := inbox.DoResult(t.Context(), "k", []byte("20 EUR"), charge)
	require.ErrorIs(t, err, idempotency.ErrKeyReused)
	require.True(t, permanent(err))
	_, err = inbox.DoResult(t.Context(), "k", nil, charge)
	require.ErrorIs(t, err, idempotency.ErrKeyReused)

	_, err = inbox.Do(t.Context(), "without", addA)
	require.NoError(t, err)
	_, err = inbox.DoResult(t.Context(), "without", nil, charge)
	require.ErrorIs(t, err, idempotency.ErrKeyReused)
	require.ErrorContains(t, err, "without a result")
	fresh, err := inbox.Do(t.Context(), "k", addA)
	require.NoError(t, err)
	require.False(t, fresh, "one key, whatever records it")

	_, err = inbox.DoResult(t.Context(), "", nil, charge)
	require.ErrorIs(t, err, idempotency.ErrNoKey)
	_, err = inbox.DoResult(t.Context(), "fails", nil, func(context.Context, pgx.Tx) ([]byte, error) { return nil, errWork })
	require.ErrorIs(t, err, errWork)
	require.Equal(t, 1, calls)
	require.Zero(t, d.number("SELECT count(*) FROM inbox WHERE key = 'fails'"))

	// What was not committed is no result, also when that is found out at COMMIT.
	d.exec("CREATE TABLE entries (account text REFERENCES accounts DEFERRABLE INITIALLY DEFERRED)")
	result, err := inbox.DoResult(t.Context(), "fails late", nil, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		_, err := tx.Exec(ctx, "INSERT INTO entries VALUES ('nobody')")
		return []byte("receipt"), err
	})
	require.ErrorContains(t, err, "23503")
	require.Nil(t, result)
}

func TestDoResultKeepsEveryByte(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	inbox := d.inbox("charge", idempotency.Config{Table: "ids", UUIDKeys: true})
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for i, result := range [][]byte{nil, {}, {0}, all, bytes.Repeat(all, 5000)} {
		key := fmt.Sprintf("00000000-0000-7000-8000-%012d", i)
		for range 2 {
			got, err := inbox.DoResult(t.Context(), key, nil, func(context.Context, pgx.Tx) ([]byte, error) { return result, nil })
			require.NoError(t, err)
			require.True(t, bytes.Equal(result, got), i)
		}
	}
}

// Sixteen calls at once: one of them does the work, and all have its result. The others wait for the first, whose row the
// snapshot of their claim cannot see.
func TestDoResultAtOnce(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			d := newDB(t)
			inbox := d.inbox("charge", idempotency.Config{LockTimeout: patience, IsoLevel: level})
			var calls atomic.Int32
			var results sync.Map
			errs := all(16, func(int) error {
				result, err := inbox.DoResult(t.Context(), "k", nil, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
					n := calls.Add(1)
					if _, err := tx.Exec(ctx, "SELECT pg_sleep(0.05)"); err != nil { // so that the others come while it works
						return nil, err
					}
					return fmt.Appendf(nil, "receipt %d", n), addA(ctx, tx)
				})
				if err == nil {
					results.Store(string(result), true)
				}
				return err
			})
			for _, err := range errs {
				require.True(t, err == nil || notNow(err) && level != pgx.ReadCommitted, "%v", err)
			}
			if level == pgx.ReadCommitted { // else a transaction that did the work may have to give way
				require.EqualValues(t, 1, calls.Load())
			}
			different := 0
			results.Range(func(any, any) bool { different++; return true })
			require.Equal(t, 1, different, "all have the same result")
			require.Equal(t, 1, d.balance("a"))
		})
	}
}
