package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
)

// TestMain is the shop's and the bank's main function, too: they are this program, started once more.
func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		os.Exit(play(role))
	}
	testenv.Main(m)
}

// endAtOnce has shops and banks that are built with the race detector not wait for a second when they end.
func endAtOnce(t *testing.T) {
	t.Helper()
	t.Setenv("GORACE", os.Getenv("GORACE")+" atexit_sleep_ms=0")
}

// Ten kills, 1,000 in make chaos, of processes, and of the broker and the database in between: the sums are exact.
func TestChaosExactToTheUnit(t *testing.T) {
	broker, database := testenv.NodeAndPostgres(t)
	endAtOnce(t)
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

// A process is stopped in good order wherever it is, also on its way up.
func TestStopsWhileItStarts(t *testing.T) {
	endAtOnce(t)
	w := world{Broker: testenv.Shared(t).URL(), Database: testenv.Postgres(t), Queue: testenv.Name(t, "payments")}
	l, err := openLedger(t.Context(), w)
	require.NoError(t, err)
	defer func() { require.NoError(t, l.close()) }()
	for _, role := range roles {
		for after := time.Duration(0); after <= 200*time.Millisecond; after += 20 * time.Millisecond {
			p, err := launch(role, w, os.Stderr)
			require.NoError(t, err)
			pause(t.Context(), after)
			require.NoError(t, p.stop(mayStop), "the %s, %v after it was started", role, after)
		}
	}
}

// What is left in the queue counts when it was never booked.
func TestTakeRest(t *testing.T) {
	w := world{Broker: testenv.Shared(t).URL(), Database: testenv.Postgres(t), Queue: testenv.Name(t, "payments")}
	l, err := openLedger(t.Context(), w)
	require.NoError(t, err)
	defer func() { require.NoError(t, l.close()) }()
	booked, lost := uuid.NewString(), uuid.NewString()
	_, err = l.pool.Exec(t.Context(), "INSERT INTO inbox (consumer, key) VALUES ('bank', $1)", booked)
	require.NoError(t, err)
	pub, err := l.conn.NewPublisher(reconnect.PublisherConfig{})
	require.NoError(t, err)
	for _, id := range []string{booked, lost, booked} {
		require.NoError(t, pub.PublishBatch(t.Context(), []reconnect.Message{{Key: w.Queue, Publishing: amqp.Publishing{MessageId: id}}}))
	}
	for _, want := range []int{1, 0} {
		n, err := l.takeRest(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
}
