package main

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// A work queue mixes bookings up, partitions do not, and are parallel all the same. Nothing is left on the broker.
func TestOnlyPartitionsKeepTheOrder(t *testing.T) {
	testenv.NoLeaks(t)
	broker := testenv.Shared(t)
	conn, err := reconnect.Dial(t.Context(), broker.URL(), reconnect.Config{Name: testenv.Name(t, "bookings")})
	require.NoError(t, err)
	defer conn.Close(context.Background())
	broker.Tidy(t, "bookings.")
	var out strings.Builder
	queued, partitioned, err := compare(t.Context(), &out, conn, 60)
	t.Log(out.String())
	require.NoError(t, err)
	require.Positive(t, queued.outOfTurn, "the work queue mixes them up")
	require.NotEmpty(t, queued.example)
	require.Zero(t, partitioned.outOfTurn)
	require.Zero(t, partitioned.stillBooked)
	require.Greater(t, partitioned.mostAtOnce, 2)
	for _, r := range out.String() {
		require.True(t, r == '\n' || r >= ' ' && r <= '~', "%q on the terminal", r)
	}
}
