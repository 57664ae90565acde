package outbox

import (
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/idempotency"
	"github.com/warrenmq/warren/internal/testenv"
)

// TestBehindAPooler: all that an Outbox does goes through a pooler of transactions, with statements that are not prepared.
func TestBehindAPooler(t *testing.T) {
	t.Parallel()
	direct := testenv.Postgres(t)
	through := testenv.Pooler(t, direct, 2)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			pool := newPool(t, through, func(cfg *pgxpool.Config) { cfg.ConnConfig.DefaultQueryExecMode = mode })
			box := boxIn(t, pool, Config{Schema: "s" + mode.String()[:4], Lanes: 2})
			heard := listen(t, boxIn(t, newPool(t, direct, nil), box.cfg), direct)
			err := together(8, func(int) error {
				return box.InTx(t.Context(), func(tx pgx.Tx) error { return box.Enqueue(t.Context(), tx, somewhere(10)...) })
			})
			require.NoError(t, err)
			testenv.Eventually(t, patience, func() bool { return heard.Load() > 0 }, "notified")
			require.Len(t, laneRows(t, box, 0), 40)
			require.Len(t, laneRows(t, box, 1), 40)
			park(t, box, 0, "test")
			parked := parkedOf(t, box)
			require.Len(t, parked, 40)
			require.NoError(t, box.Requeue(t.Context(), parked[0].ID, parked[1].ID))
			require.NoError(t, box.Discard(t.Context(), parked[2].ID))
			stats, err := box.Stats(t.Context())
			require.NoError(t, err)
			require.Equal(t, []int64{42, 37}, []int64{stats.Waiting, stats.Parked})
		})
	}
}

// TestMigrateBoth: an outbox and an inbox that make the same new schema do not get into each other's way.
func TestMigrateBoth(t *testing.T) {
	t.Parallel()
	pool := newPool(t, testenv.Postgres(t), nil)
	require.NoError(t, together(8, func(n int) error {
		if n%2 == 0 {
			inbox, err := idempotency.New(pool, "test", idempotency.Config{Schema: "both"})
			require.NoError(t, err)
			return inbox.Migrate(t.Context())
		}
		box, err := New(pool, Config{Schema: "both"})
		require.NoError(t, err)
		return box.Migrate(t.Context())
	}))
}

// TestP55P65EveryMessageHasAnID: made when it is enqueued, so that it is the same however often and by whomever it is sent.
func TestP55P65EveryMessageHasAnID(t *testing.T) {
	box, err := New(nil, Config{})
	require.NoError(t, err)
	seen := map[string]bool{}
	for range 100 {
		entries, err := box.entries(somewhere(100), nil)
		require.NoError(t, err)
		for _, e := range entries {
			require.False(t, seen[e.id])
			seen[e.id] = true
			require.Equal(t, uuid.Version(7), uuid.MustParse(e.id).Version())
			require.NoError(t, checkID(e.id))
		}
	}
}
