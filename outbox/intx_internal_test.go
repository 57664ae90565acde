package outbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

func TestInTx(t *testing.T) {
	t.Parallel()
	box := newBox(t, Config{})
	exec(t, box.pool, "CREATE TABLE orders (id int)")
	work := func(ctx context.Context, result error) error {
		return box.InTx(ctx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO orders VALUES (1)")
			require.NoError(t, err)
			require.NoError(t, box.Enqueue(ctx, tx, Message{Key: "k"}))
			return result
		})
	}
	counts := func() [2]int {
		return [2]int{scan[int](t, box.pool, "SELECT count(*) FROM orders"), len(laneRows(t, box, 0))}
	}
	require.NoError(t, work(t.Context(), nil))
	require.Equal(t, [2]int{1, 1}, counts())

	failure := errors.New("no")
	require.ErrorIs(t, work(t.Context(), failure), failure)
	require.Equal(t, [2]int{1, 1}, counts(), "an error rolls back")

	require.PanicsWithValue(t, "boom", func() {
		_ = box.InTx(t.Context(), func(tx pgx.Tx) error {
			require.NoError(t, box.Enqueue(t.Context(), tx, Message{Key: "k"}))
			panic("boom")
		})
	})
	require.Equal(t, [2]int{1, 1}, counts(), "so does a panic")

	ctx, cancel := context.WithCancelCause(t.Context())
	err := box.InTx(ctx, func(tx pgx.Tx) error {
		require.NoError(t, box.Enqueue(ctx, tx, Message{Key: "k"}))
		cancel(failure)
		return nil
	})
	require.ErrorIs(t, err, failure)
	require.Equal(t, [2]int{1, 1}, counts(), "what ends before the commit is not committed")

	err = box.InTx(t.Context(), func(tx pgx.Tx) error {
		require.NoError(t, box.Enqueue(t.Context(), tx, Message{Key: "k"}))
		_, err := tx.Exec(t.Context(), "SELECT 1/0")
		require.Error(t, err) // and forgotten
		return nil
	})
	require.ErrorIs(t, err, pgx.ErrTxCommitRollback, "a swallowed error is no success")
	require.Equal(t, [2]int{1, 1}, counts())
	testenv.Eventually(t, patience, func() bool { return box.pool.Stat().AcquiredConns() == 0 }, "but for a notification, all are given back")
}

// TestInTxCommitIsNotCutOff: a ctx that ends during the commit does not leave it unknown.
func TestInTxCommitIsNotCutOff(t *testing.T) {
	t.Parallel()
	direct := testenv.Postgres(t)
	proxy := testenv.Proxy(t, direct)
	box := boxIn(t, newPool(t, proxy.URL(), nil), Config{})
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() {
		result <- box.InTx(ctx, func(tx pgx.Tx) error {
			defer proxy.FreezeToClient() // the commit arrives, its answer does not
			return box.Enqueue(ctx, tx, Message{Key: "k"})
		})
	}()
	other := newPool(t, direct, nil)
	testenv.Eventually(t, patience, func() bool { return scan[int](t, other, "SELECT count(*) FROM outbox") == 1 }, "committed")
	cancel()
	select {
	case err := <-result:
		t.Fatalf("cut off: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	proxy.Heal()
	require.NoError(t, <-result)
}

// TestInTxBounded: a database that does not answer the commit holds InTx for commitTime after its ctx, no longer; the
// error says that nobody knows.
func TestInTxBounded(t *testing.T) {
	t.Parallel()
	proxy := testenv.Proxy(t, testenv.Postgres(t))
	box := boxIn(t, newPool(t, proxy.URL(), nil), Config{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var ended time.Time
	err := box.InTx(ctx, func(tx pgx.Tx) error {
		defer func() {
			proxy.Freeze()
			time.AfterFunc(time.Millisecond, func() { ended = time.Now(); cancel() })
		}()
		return box.Enqueue(ctx, tx, Message{Key: "k"})
	})
	took := time.Since(ended)
	require.Error(t, err)
	var server *pgconn.PgError
	require.False(t, errors.As(err, &server))
	require.NotErrorIs(t, err, pgx.ErrTxCommitRollback)
	require.GreaterOrEqual(t, took, commitTime)
	require.Less(t, took, 3*commitTime, "took %v", took)
	proxy.Heal()
}

// TestP63CommitOutcome: a session that is ended before the commit leaves nothing, and InTx says so.
func TestP63CommitOutcome(t *testing.T) {
	t.Parallel()
	u := testenv.Postgres(t)
	box := boxIn(t, newPool(t, u, func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["application_name"] = "service" }), Config{})
	err := box.InTx(t.Context(), func(tx pgx.Tx) error {
		require.NoError(t, box.Enqueue(t.Context(), tx, Message{Key: "k"}))
		testenv.TerminateSessions(t, u, "service")
		return nil
	})
	require.Error(t, err)
	require.Empty(t, laneRows(t, box, 0))
	require.NoError(t, box.InTx(t.Context(), func(tx pgx.Tx) error { return box.Enqueue(t.Context(), tx, Message{Key: "k"}) }), "the pool goes on")
}

// TestEnqueueInCrash: what was committed when the server crashed is there afterwards, and nothing else.
func TestEnqueueInCrash(t *testing.T) {
	node := testenv.PostgresNode(t)
	box := boxIn(t, newPool(t, node.URL(), nil), Config{})
	committed := map[string]bool{}
	crashed := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			id := uuid.NewString()
			msg := Message{Key: "k"}
			msg.MessageId = id
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			err := box.InTx(ctx, func(tx pgx.Tx) error { return box.Enqueue(ctx, tx, msg) })
			cancel()
			select {
			case <-crashed:
				return
			default:
			}
			if err == nil {
				committed[id] = true
			}
		}
	}()
	other := newPool(t, node.URL(), nil)
	testenv.Eventually(t, patience, func() bool { return scan[int](t, other, "SELECT count(*) FROM outbox") > 50 }, "some are there")
	node.Crash()
	close(crashed)
	<-done
	node.Start()
	box.pool.Reset() // a connection that nobody has used since the crash is dead
	rows := laneRows(t, box, 0)
	there := map[string]bool{}
	for _, r := range rows {
		there[r.messageID.String()] = true
	}
	for id := range committed {
		require.True(t, there[id])
	}
	require.LessOrEqual(t, len(rows), len(committed)+1, "at most the one whose commit nobody saw")
}

// TestP53OrderOfIDs: ids are in the order in which writers of a key held its row, whatever came in between; that is what
// relays go by.
func TestP53OrderOfIDs(t *testing.T) {
	t.Parallel()
	const keys, writers, each = 10, 8, 60
	box := boxIn(t, newPool(t, testenv.Postgres(t), func(cfg *pgxpool.Config) { cfg.MaxConns = writers }), Config{Lanes: 2})
	exec(t, box.pool, "CREATE TABLE counters (key text PRIMARY KEY, n int NOT NULL)")
	exec(t, box.pool, fmt.Sprintf("INSERT INTO counters SELECT 'key ' || i, 0 FROM generate_series(1, %d) i", keys))
	rolledBack := errors.New("on purpose")
	err := together(writers, func(writer int) error {
		random := rand.New(rand.NewPCG(53, uint64(writer)))
		for range each {
			key := fmt.Sprint("key ", 1+random.IntN(keys))
			err := box.InTx(t.Context(), func(tx pgx.Tx) error {
				var n int
				if err := tx.QueryRow(t.Context(), "UPDATE counters SET n = n + 1 WHERE key = $1 RETURNING n", key).Scan(&n); err != nil {
					return err
				}
				if err := box.Enqueue(t.Context(), tx, Message{Key: fmt.Sprint(n), OrderingKey: key}); err != nil {
					return err
				}
				if random.IntN(20) == 0 {
					return rolledBack
				}
				return nil
			})
			if err != nil && !errors.Is(err, rolledBack) {
				return err
			}
		}
		return nil
	})
	require.NoError(t, err)
	next := map[string]int{}
	for lane := range 2 {
		for _, r := range laneRows(t, box, lane) {
			next[*r.orderingKey]++
			require.Equal(t, fmt.Sprint(next[*r.orderingKey]), r.key, "of %s", *r.orderingKey)
		}
	}
	require.Equal(t, scan[int](t, box.pool, "SELECT sum(n) FROM counters"), len(laneRows(t, box, 0))+len(laneRows(t, box, 1)))
}

// TestEnqueueBlocksNobody: enqueueing takes no lock that another transaction waits for.
func TestEnqueueBlocksNobody(t *testing.T) {
	t.Parallel()
	u := testenv.Postgres(t)
	box := boxIn(t, newPool(t, u, nil), Config{})
	held, err := box.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = held.Rollback(context.Background()) }()
	require.NoError(t, box.Enqueue(t.Context(), held, Message{Key: "held"}))
	require.NoError(t, box.InTx(t.Context(), func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "SET LOCAL lock_timeout = '1s'")
		require.NoError(t, err)
		return box.Enqueue(t.Context(), tx, Message{Key: "other"})
	}))
	rows := laneRows(t, box, 0)
	require.Len(t, rows, 1)
	require.Equal(t, int64(2), rows[0].id, "the one before is still to come, or never")
}
