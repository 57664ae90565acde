package testenv

import (
	"context"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/warrenmq/warren/internal/testenv/provide"
)

// Sessions returns the pids of the sessions in the database at rawURL that have the given application_name, in the order in
// which they came, however their connections get there (a proxy, a pooler). Give a pool its name by
// "application_name" in the URL's query or its RuntimeParams.
func Sessions(tb testing.TB, rawURL, application string) []int {
	tb.Helper()
	var pids []int
	withPostgres(tb, rawURL, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"+
			" AND application_name = $1 ORDER BY backend_start, pid", application)
		if err != nil {
			return err
		}
		pids, err = pgx.CollectRows(rows, pgx.RowTo[int])
		return err
	})
	return pids
}

// TerminateSessions ends the sessions of that application_name in the database at rawURL, as an administrator would:
// their clients get 57P01. It waits until they are gone and returns how many there were.
func TerminateSessions(tb testing.TB, rawURL, application string) int {
	tb.Helper()
	pids := Sessions(tb, rawURL, application)
	TerminateBackends(tb, rawURL, pids...)
	return len(pids)
}

// TerminateBackends ends sessions by their pids and waits until they are gone. One that is gone already is ended.
func TerminateBackends(tb testing.TB, rawURL string, pids ...int) {
	tb.Helper()
	withPostgres(tb, rawURL, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) AS t (pid)", pids)
		if err != nil {
			return err
		}
		Eventually(tb, faultTime, func() bool {
			var left int
			err := conn.QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY ($1)", pids).Scan(&left)
			return err == nil && left == 0
		}, "the sessions %v end", pids)
		return nil
	})
}

// FreezeBackend stops the process of a session of the server at rawURL, until thaw is called or else the test ends: its
// connection stays open, what it has locked stays locked, and it answers nothing. Where that cannot be done, because the
// server is only an address, the test is left out.
func FreezeBackend(tb testing.TB, rawURL string, pid int) (thaw func()) {
	tb.Helper()
	server := serverAt(tb, rawURL)
	if !server.CanSignal() {
		leaveOut(tb, "a database server whose processes can be stopped")
	}
	ctx, cancel := context.WithTimeout(context.Background(), faultTime)
	defer cancel()
	if err := server.FreezeBackend(ctx, pid); err != nil {
		tb.Fatalf("freeze backend %d: %v", pid, err)
	}
	frozen := true
	thaw = func() {
		tb.Helper()
		if !frozen {
			return
		}
		frozen = false
		ctx, cancel := context.WithTimeout(context.Background(), faultTime)
		defer cancel()
		if err := server.ThawBackend(ctx, pid); err != nil && server.Running() {
			tb.Errorf("thaw backend %d: %v", pid, err)
		}
	}
	tb.Cleanup(thaw)
	return thaw
}

// serverAt returns the server that a database of this binary's tests is on.
func serverAt(tb testing.TB, rawURL string) *provide.Postgres {
	tb.Helper()
	want, err := url.Parse(rawURL)
	if err != nil {
		tb.Fatal("the database's URL cannot be parsed")
	}
	lendingPostgres.mu.Lock()
	node := lendingPostgres.holder
	lendingPostgres.mu.Unlock()
	shared, err := postgresServer()
	if err != nil {
		tb.Fatal(err)
	}
	candidates := []*provide.Postgres{shared}
	if node != nil {
		candidates = append(candidates, node.server)
	}
	for _, server := range candidates {
		if u, err := url.Parse(server.URL); err == nil && u.Host == want.Host {
			return server
		}
	}
	tb.Fatal("the database's URL is not that of a server of the tests: give the one from Postgres or PostgresNode, not a proxy's")
	return nil
}

// HeldSession is a session that holds something until the test lets it go.
type HeldSession struct {
	// PID is that of the session's backend.
	PID int

	tb   testing.TB
	conn *pgx.Conn
	tx   pgx.Tx
}

// HoldSnapshot opens a transaction that has taken its snapshot and holds it, as a report or a backup does: nothing that
// was deleted since can be vacuumed away. It ends with Rollback or the test.
func HoldSnapshot(tb testing.TB, rawURL string) *HeldSession {
	tb.Helper()
	return hold(tb, rawURL, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, "SELECT 1")
}

// HoldTransaction opens a transaction, at READ COMMITTED, that has an id (it counts among those that may still commit) and
// has run the statements. It ends with Commit, Rollback or the test.
func HoldTransaction(tb testing.TB, rawURL string, statements ...string) *HeldSession {
	tb.Helper()
	return hold(tb, rawURL, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, append([]string{"SELECT pg_current_xact_id()"}, statements...)...)
}

func hold(tb testing.TB, rawURL string, options pgx.TxOptions, statements ...string) *HeldSession {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), faultTime)
	defer cancel()
	conn, err := pgx.Connect(ctx, rawURL)
	if err != nil {
		tb.Fatalf("open a session: %v", err)
	}
	h := &HeldSession{PID: int(conn.PgConn().PID()), tb: tb, conn: conn}
	tb.Cleanup(h.close)
	if h.tx, err = conn.BeginTx(ctx, options); err != nil {
		tb.Fatalf("begin: %v", err)
	}
	for _, s := range statements {
		h.Exec(s)
	}
	return h
}

// Exec runs a statement in the session's transaction.
func (h *HeldSession) Exec(statement string, args ...any) {
	h.tb.Helper()
	h.do(statement, func(ctx context.Context) error {
		_, err := h.tx.Exec(ctx, statement, args...)
		return err
	})
}

// Commit commits the session's transaction.
func (h *HeldSession) Commit() {
	h.tb.Helper()
	h.do("commit", h.tx.Commit)
}

// Rollback rolls the session's transaction back.
func (h *HeldSession) Rollback() {
	h.tb.Helper()
	h.do("roll back", h.tx.Rollback)
}

func (h *HeldSession) do(what string, action func(context.Context) error) {
	h.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), faultTime)
	defer cancel()
	if err := action(ctx); err != nil {
		h.tb.Fatalf("held session: %s: %v", what, err)
	}
}

// close ends the session, transaction and all.
func (h *HeldSession) close() {
	ctx, cancel := context.WithTimeout(context.Background(), faultTime)
	defer cancel()
	_ = h.conn.Close(ctx) // its server may be gone
}

// withPostgres runs fn on a connection of its own.
func withPostgres(tb testing.TB, rawURL string, fn func(ctx context.Context, conn *pgx.Conn) error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), faultTime)
	defer cancel()
	conn, err := pgx.Connect(ctx, rawURL)
	if err != nil {
		tb.Fatalf("connect to the database: %v", err)
	}
	defer conn.Close(ctx)
	if err := fn(ctx, conn); err != nil {
		tb.Fatalf("the database: %v", err)
	}
}
