package testenv_test

import (
	"context"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

func TestPostgres(t *testing.T) {
	names := map[string]bool{}
	for range 2 {
		u, err := url.Parse(testenv.Postgres(t))
		require.NoError(t, err)
		require.Equal(t, "postgres", u.Scheme)
		names[u.Path] = true
	}
	require.Len(t, names, 2, "each call gives a database of its own")
}

// session opens a connection under an application_name of its own.
func session(t *testing.T, rawURL, name string) *pgx.Conn {
	t.Helper()
	cfg, err := pgx.ParseConfig(rawURL)
	require.NoError(t, err)
	cfg.RuntimeParams["application_name"] = name
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// serves reports whether a session does within the time.
func serves(t *testing.T, conn *pgx.Conn, within time.Duration) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	var one int
	return conn.QueryRow(ctx, "SELECT 1").Scan(&one) == nil
}

func TestTerminateSessions(t *testing.T) {
	t.Parallel()
	u := testenv.Postgres(t)
	mine, other := session(t, u, "mine"), session(t, u, "other")
	require.Len(t, testenv.Sessions(t, u, "mine"), 1)
	require.Equal(t, 1, testenv.TerminateSessions(t, u, "mine"))
	_, err := mine.Exec(t.Context(), "SELECT 1")
	var told *pgconn.PgError
	require.ErrorAs(t, err, &told)
	require.Equal(t, "57P01", told.Code)
	require.True(t, serves(t, other, patience))
}

func TestFreezeBackend(t *testing.T) {
	t.Parallel()
	u := testenv.Postgres(t)
	frozen, other := session(t, u, "frozen"), session(t, u, "other")
	thaw := testenv.FreezeBackend(t, u, int(frozen.PgConn().PID()))
	answer := make(chan error, 1)
	go func() {
		_, err := frozen.Exec(t.Context(), "SELECT 1")
		answer <- err
	}()
	require.True(t, serves(t, other, patience))
	select {
	case err := <-answer:
		t.Fatalf("a frozen backend answered: %v", err)
	case <-time.After(quiet):
	}
	thaw()
	select {
	case err := <-answer:
		require.NoError(t, err)
	case <-time.After(patience):
		t.Fatal("a thawed backend does not answer")
	}
}

func TestPostgresNode(t *testing.T) {
	n := testenv.PostgresNode(t)
	require.Same(t, n, testenv.PostgresNode(t))
	conn := session(t, n.URL(), "client")
	_, err := conn.Exec(t.Context(), "CREATE TABLE kept AS SELECT 1 AS id")
	require.NoError(t, err)

	timed(t, "freeze", n.Freeze)
	require.False(t, serves(t, conn, quiet))
	timed(t, "thaw", n.Thaw)

	conn = session(t, n.URL(), "client")
	timed(t, "crash", n.Crash)
	require.False(t, serves(t, conn, patience))
	_, err = pgx.Connect(t.Context(), n.URL())
	require.Error(t, err)
	timed(t, "start after a crash", n.Start)

	conn = session(t, n.URL(), "client")
	var kept int
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM kept").Scan(&kept))
	require.Equal(t, 1, kept)
	timed(t, "stop", n.Stop)
	timed(t, "start", n.Start)

	conn = session(t, n.URL(), "client")
	testenv.FreezeBackend(t, n.URL(), int(conn.PgConn().PID()))
	timed(t, "crash with a frozen backend", n.Crash)
}

func TestHeldSessions(t *testing.T) {
	t.Parallel()
	u := testenv.Postgres(t)
	conn := session(t, u, "client")
	_, err := conn.Exec(t.Context(), "CREATE TABLE counted (n int)")
	require.NoError(t, err)
	count := func() (n int) {
		require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM counted").Scan(&n))
		return n
	}
	writer := testenv.HoldTransaction(t, u, "INSERT INTO counted VALUES (1)")
	require.Zero(t, count())
	writer.Commit()
	require.Equal(t, 1, count())

	age := func() (n int) {
		require.NoError(t, conn.QueryRow(t.Context(),
			"SELECT count(*) FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid()"+
				" AND datname = current_database() AND backend_type = 'client backend'").Scan(&n)) // nor autovacuum
		return n
	}
	reader := testenv.HoldSnapshot(t, u)
	require.Equal(t, 1, age())
	reader.Rollback()
	require.Zero(t, age())
}

// TestPooler: what a session has does not last from one transaction to the next.
func TestPooler(t *testing.T) {
	t.Parallel()
	direct := testenv.Postgres(t)
	through := testenv.Pooler(t, direct, 2)
	a, b := session(t, through+"&default_query_exec_mode=exec", "a"), session(t, through+"&default_query_exec_mode=exec", "b")
	backend := func(conn *pgx.Conn) (pid int) {
		require.NoError(t, conn.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&pid))
		return pid
	}
	first := backend(a)
	tx, err := b.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "SELECT pg_advisory_lock(1)")
	require.NoError(t, err)
	require.NotEqual(t, first, backend(a), "the first one is in use")
	require.NoError(t, tx.Commit(t.Context()))

	direct2 := session(t, direct, "direct")
	var free bool
	require.NoError(t, direct2.QueryRow(t.Context(), "SELECT pg_try_advisory_lock(1)").Scan(&free))
	require.False(t, free, "the pooler's session still has it, whoever uses that now")
}
