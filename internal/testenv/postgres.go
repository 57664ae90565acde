package testenv

import (
	"context"
	"strings"
	"testing"

	"github.com/warrenmq/warren/internal/testenv/provide"
)

// Postgres returns the URL of an empty database on the run's one PostgreSQL server: the one the suite handed down or
// DATABASE_URL names, else one this binary starts on first use. The database is dropped when the test ends, whatever
// is connected to it then.
func Postgres(tb testing.TB) string {
	tb.Helper()
	server, err := postgresServer()
	if err != nil {
		tb.Fatalf("no PostgreSQL for the tests: %v\n%s", err, hint)
	}
	return database(tb, server)
}

// database makes a database for one test.
func database(tb testing.TB, server *provide.Postgres) string {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), faultTime)
	defer cancel()
	name := databaseName(tb)
	url, err := server.CreateDatabase(ctx, name)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), faultTime)
		defer cancel()
		if err := server.DropDatabase(ctx, name); err != nil {
			tb.Error(err)
		}
	})
	return url
}

func postgresServer() (*provide.Postgres, error) {
	p, err := provider()
	if err != nil {
		return nil, err
	}
	return owned.postgres.get(p.Postgres)
}

// databaseName is Name within PostgreSQL's 63 bytes: it keeps the random end.
func databaseName(tb testing.TB) string {
	name := strings.ToLower(Name(tb, "warren"))
	return "t_" + name[max(0, len(name)-60):]
}
