package testenv

import (
	"context"
	"errors"
	"testing"

	"github.com/warrenmq/warren/internal/testenv/provide"
)

// Pooler puts a PgBouncer of the machine's own in front of the database at rawURL until the test ends, and returns the
// database's URL through it. Each transaction gets another of its few sessions (pool_mode transaction), so that nothing
// that belongs to a session lasts: session locks, LISTEN, prepared statements. Give pgx
// default_query_exec_mode=exec in the URL's query, or set QueryExecModeExec.
func Pooler(tb testing.TB, rawURL string, sessions int) string {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	p, err := provide.StartPooler(ctx, rawURL, sessions)
	if server, _ := postgresServer(); errors.Is(err, provide.ErrNoPooler) && server != nil && server.Kind == provide.URL {
		leaveOut(tb, "a PgBouncer on this machine") // on which nothing is installed where servers are given
	}
	if err != nil {
		tb.Fatalf("no PgBouncer for the test: %v\n%s", err, hint)
	}
	tb.Cleanup(func() {
		if err := p.Remove(); err != nil {
			tb.Errorf("remove PgBouncer: %v", err)
		}
	})
	return p.URL
}
