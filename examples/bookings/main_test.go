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
	before := resources(t, broker)
	var out strings.Builder
	queued, partitioned, err := compare(t.Context(), &out, conn, 60)
	t.Log(out.String())
	require.NoError(t, err)
	require.Positive(t, queued.outOfTurn, "the work queue mixes them up")
	require.NotEmpty(t, queued.example)
	require.Zero(t, partitioned.outOfTurn)
	require.Zero(t, partitioned.stillBooked)
	require.Greater(t, partitioned.mostAtOnce, 2)
	require.Equal(t, before, resources(t, broker))
	for _, r := range out.String() {
		require.True(t, r == '\n' || r >= ' ' && r <= '~', "%q on the terminal", r)
	}
}

// resources are the names of the broker's queues and exchanges of this example.
func resources(t *testing.T, b *testenv.Broker) (names []string) {
	t.Helper()
	b.Eval(t, &names, `[Name || {resource, _, _, Name} <- rabbit_amqqueue:list_names() ++ [element(2, X) || X <- rabbit_exchange:list()],
		binary:longest_common_prefix([<<"bookings.">>, Name]) =:= 9].`)
	return names
}
