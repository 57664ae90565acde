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
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
)

// patience bounds what should come at once, on a machine that has much else to do.
const patience = 10 * time.Second

// newPool returns a pool of the database at url; change, if not nil, may alter its settings.
func newPool(t testing.TB, url string, change func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	if change != nil {
		change(cfg)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// newBox returns an outbox in a database of its own, with its tables.
func newBox(t testing.TB, cfg Config) *Outbox {
	t.Helper()
	return boxIn(t, newPool(t, testenv.Postgres(t), nil), cfg)
}

func boxIn(t testing.TB, pool *pgxpool.Pool, cfg Config) *Outbox {
	t.Helper()
	box, err := New(pool, cfg)
	require.NoError(t, err)
	require.NoError(t, box.Migrate(context.Background()))
	return box
}

// storedRow is a row of a lane.
type storedRow struct {
	id int64
	row
}

// laneRows returns what is in a lane, in the order of the ids.
func laneRows(t testing.TB, box *Outbox, lane int) []storedRow {
	t.Helper()
	rows, err := box.pool.Query(context.Background(),
		fmt.Sprintf("SELECT id, %s FROM %s ORDER BY id", rowColumns, box.tables.lane(lane)))
	require.NoError(t, err)
	var all []storedRow
	var r storedRow
	_, err = pgx.ForEachRow(rows, append([]any{&r.id}, r.targets()...), func() error {
		all = append(all, r)
		return nil
	})
	require.NoError(t, err)
	return all
}

// laneMessages returns what would be sent of a lane.
func laneMessages(t testing.TB, box *Outbox, lane int) []reconnect.Message {
	t.Helper()
	var all []reconnect.Message
	for _, r := range laneRows(t, box, lane) {
		m, err := r.message()
		require.NoError(t, err)
		all = append(all, m)
	}
	return all
}

// scan returns the one value of a query.
func scan[T any](t testing.TB, pool *pgxpool.Pool, sql string, args ...any) T {
	t.Helper()
	var v T
	require.NoError(t, pool.QueryRow(context.Background(), sql, args...).Scan(&v), sql)
	return v
}

func exec(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	_, err := pool.Exec(context.Background(), sql, args...)
	require.NoError(t, err, sql)
}

func isPermanent(err error) bool {
	var p interface{ Permanent() bool }
	return errors.As(err, &p) && p.Permanent()
}

// somewhere returns n messages with nothing but a destination.
func somewhere(n int) []Message { return slices.Repeat([]Message{{Key: "k"}}, n) }

// together calls fn n times at once and returns what went wrong.
func together(n int, fn func(n int) error) error {
	errs := make([]error, n)
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() { errs[i] = fn(i) })
	}
	running.Wait()
	return errors.Join(errs...)
}
