package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// TestMain is the service's main function, too: it is this program, started once more.
func TestMain(m *testing.M) {
	if os.Getenv(lifeEnv) != "" {
		os.Exit(live())
	}
	testenv.Main(m)
}

// Killed between commit and publish, and between confirm and delete: nothing is lost, and what comes twice keeps its id.
func TestNothingIsLost(t *testing.T) {
	var out strings.Builder
	broker := testenv.Shared(t)
	at := place{Broker: broker.URL(), Database: testenv.Postgres(t), Queue: testenv.Name(t, "orders")}
	err := tell(t.Context(), &out, at)
	t.Log(out.String())
	require.NoError(t, err)
	require.Contains(t, out.String(), "50 rows wait in the outbox, 0 events have come, 0 of them again", "killed before it published")
	require.Contains(t, out.String(), "100 rows wait in the outbox, 100 events have come, 0 of them again", "killed before it deleted")
	require.Contains(t, out.String(), "0 rows wait in the outbox, 250 events have come, 100 of them again")
	require.Contains(t, out.String(), "150 orders, 0 lost; 100 events came more than once, 0 of those under another id")
	require.False(t, broker.Queue(t, at.Queue).Exists, "nothing is left behind")
}
