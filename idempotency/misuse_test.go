package idempotency_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/idempotency"
)

// P63, P64: what a handler does wrong each time is its failure, and never a "not now", with which its message would stay for
// ever, nor a success.
func TestP64MistakesOfTheWorkAreFailures(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	slow := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "SELECT pg_sleep(60)")
		return err
	}
	test := func(t *testing.T, name string, within time.Duration, work func(ctx context.Context, tx pgx.Tx) error) {
		for conns, size := range map[string]int32{"": conns, " on the only connection": 1} {
			t.Run(name+conns, func(t *testing.T) {
				t.Parallel()
				inbox, err := idempotency.New(d.open(d.url, size), t.Name(), idempotency.Config{Logger: quiet})
				require.NoError(t, err)
				require.NoError(t, inbox.Migrate(t.Context()))
				ctx, cancel := context.WithTimeout(t.Context(), within)
				defer cancel()
				_, err = inbox.Do(ctx, "k", work)
				require.Error(t, err)
				require.False(t, notNow(err), "%v", err)
				t.Log(err)
			})
		}
	}
	const enough = 2 * time.Second // to begin, on a connection that is there
	test(t, "is too slow", enough, slow)
	test(t, "is too slow, and hides it", enough, func(ctx context.Context, tx pgx.Tx) error {
		_ = slow(ctx, tx)
		return nil
	})
	for name, work := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"ends the transaction in SQL": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "ROLLBACK")
			return err
		},
		"commits in SQL": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "COMMIT")
			return err
		},
		"leaves rows unread": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Query(ctx, "SELECT generate_series(1, 100000)")
			return err
		},
		"is too slow for its own patience": func(ctx context.Context, tx pgx.Tx) error {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
			defer cancel()
			return slow(ctx, tx)
		},
		"gives up": func(ctx context.Context, tx pgx.Tx) error {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(10*time.Millisecond, cancel)
			return slow(ctx, tx)
		},
	} {
		test(t, name, patience, work)
	}
}
