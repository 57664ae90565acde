package outbox

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// While one half of a Batch is deleted, here by a database that takes long over it, the other half is sent, and no more.
func TestSendsWhileItDeletes(t *testing.T) {
	t.Parallel()
	box, pub := newBox(t, Config{}), new(fake)
	keys := numbered("k.", 20)
	store(t, box, keys...)
	tx, err := box.pool.Begin(context.Background())
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	locked, err := tx.Exec(context.Background(), "SELECT FROM outbox FOR KEY SHARE")
	require.NoError(t, err)
	require.EqualValues(t, len(keys), locked.RowsAffected())

	relay(t, box, pub, RelayConfig{Batch: 10})
	testenv.Eventually(t, patience, func() bool { return len(pub.calledWith()) == 2 }, "a second part is sent")
	require.Equal(t, []int{5, 5}, pub.calledWith())
	require.NoError(t, tx.Rollback(context.Background()))
	drained(t, box)
	require.Equal(t, keys, pub.sent())
	require.Equal(t, []int{5, 5, 5, 5}, pub.calledWith())
}
