package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// TestMain is the shop's and the bank's main function, too: they are this program, started once more.
func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		os.Exit(play(role))
	}
	testenv.Main(m)
}

// Ten kills, 1,000 in make chaos, of processes, and of the broker and the database in between: the sums are exact.
func TestChaosExactToTheUnit(t *testing.T) {
	broker, database := testenv.NodeAndPostgres(t)
	t.Setenv("GORACE", os.Getenv("GORACE")+" atexit_sleep_ms=0") // else shop and bank take a second each to end
	// RabbitMQ restarts in a second when the Erlang machine it runs in goes on. All that it had in memory is gone all the same.
	kills, restart := 10, func() { broker.Eval(t, nil, "ok = rabbit:stop(), ok = rabbit:start(), ok.") }
	if os.Getenv("WARREN_CHAOS") != "" {
		kills, restart = 1000, broker.Restart
	}
	ofTest := func(restart func()) func() error {
		return func() error { restart(); return nil } // what cannot be done fails the test
	}
	own := []service{{"the broker", "restart", ofTest(restart)}, {"the database", "crash", ofTest(database.Restart)}}
	var out strings.Builder
	w := world{Broker: broker.URL(), Database: database.URL(), Queue: testenv.Name(t, "payments")}
	r, err := direct(t.Context(), &out, w, own, kills)
	if err != nil {
		t.Log(out.String())
	}
	require.NoError(t, err)
	printed := r.print(&out)
	t.Log(out.String())
	require.NoError(t, printed)
	require.Equal(t, kills, r.Kills["shop"]+r.Kills["bank"])
	require.Positive(t, r.Kills["the broker"])
	require.Positive(t, r.Kills["the database"])
	require.Greater(t, r.Arrived, r.Orders, "messages came twice")
	require.Zero(t, broker.Queue(t, w.Queue).Ready)
	require.False(t, broker.Queue(t, w.Queue).Exists, "nothing is left behind")
	for _, c := range out.String() {
		require.True(t, c == '\n' || c >= ' ' && c <= '~', "%q on the terminal", c)
	}
}
