package idempotency_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/idempotency"
	"github.com/warrenmq/warren/internal/testenv"
)

// Any number of processes may migrate at once, and again; names may be any text.
func TestMigrate(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	for _, cfg := range []idempotency.Config{
		{}, {Table: "second", UUIDKeys: true}, {Schema: `My "own"`, Table: `in.box; DROP`},
		{Table: strings.Repeat("ä", 28)}, {Table: strings.Repeat("ä", 27) + "é"}, // the longest, alike but for their ends
	} {
		inbox, err := idempotency.New(d.pool, "billing", cfg)
		require.NoError(t, err)
		require.NoError(t, errors.Join(all(8, func(int) error { return inbox.Migrate(t.Context()) })...))
		key := "00000000-0000-7000-8000-000000000001"
		for _, want := range []bool{true, false} {
			fresh, err := inbox.Do(t.Context(), key, addA)
			require.NoError(t, err)
			require.Equal(t, want, fresh)
		}
	}
	require.Equal(t, 5, d.balance("a"), "each table knows its own keys")

	wrong, err := idempotency.New(d.pool, "billing", idempotency.Config{UUIDKeys: true})
	require.NoError(t, err)
	require.ErrorContains(t, wrong.Migrate(t.Context()), "UUIDKeys: true")
	wrong, err = idempotency.New(d.pool, "billing", idempotency.Config{Table: "second"})
	require.NoError(t, err)
	require.ErrorContains(t, wrong.Migrate(t.Context()), "UUIDKeys: false")
}

// What DDL prints is what Migrate does.
func TestDDL(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	inbox, err := idempotency.New(nil, "billing", idempotency.Config{Schema: "app"})
	require.NoError(t, err)
	d.exec(inbox.DDL())
	inbox, err = idempotency.New(d.pool, "billing", idempotency.Config{Schema: "app"})
	require.NoError(t, err)
	require.NoError(t, inbox.Migrate(t.Context()), "it is up to date")
	fresh, err := inbox.Do(t.Context(), "k", addA)
	require.NoError(t, err)
	require.True(t, fresh)
}

// The rights that the package's documentation lists are enough, for each of its parts, and Migrate of tables that are there takes
// no other.
func TestRights(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	d.inbox("billing", idempotency.Config{})
	role := applicationName(t) + "_role" // of the whole server, unlike all else
	d.exec(`CREATE ROLE "` + role + `" NOLOGIN`)
	t.Cleanup(func() { d.exec(`DROP OWNED BY "` + role + `"`); d.exec(`DROP ROLE "` + role + `"`) })
	d.exec(`REVOKE CREATE ON SCHEMA public FROM PUBLIC`)
	d.exec(`GRANT SELECT, UPDATE ON accounts TO "` + role + `"`)
	d.exec(`GRANT SELECT ON inbox_schema TO "` + role + `"`)
	d.exec(`GRANT SELECT, INSERT ON inbox TO "` + role + `"`)
	cfg, err := pgxpool.ParseConfig(d.url)
	require.NoError(t, err)
	cfg.ConnConfig.RuntimeParams["role"] = role
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	defer pool.Close()
	inbox, err := idempotency.New(pool, "billing", idempotency.Config{Logger: quiet})
	require.NoError(t, err)
	require.NoError(t, inbox.Migrate(t.Context()))
	_, err = inbox.Do(t.Context(), "k", addA)
	require.NoError(t, err)
	d.exec(`GRANT UPDATE (fingerprint, result) ON inbox TO "` + role + `"`)
	_, err = inbox.DoResult(t.Context(), "l", nil, func(ctx context.Context, tx pgx.Tx) ([]byte, error) { return nil, addA(ctx, tx) })
	require.NoError(t, err)
	d.exec(`GRANT DELETE, UPDATE ON inbox TO "` + role + `"`)
	d.exec(`GRANT SELECT, INSERT, UPDATE ON inbox_sweep TO "` + role + `"`)
	d.fill("billing", 10, 1000*time.Hour)
	stop := runInbox(t, inbox)
	testenv.Eventually(t, patience, func() bool { return d.known() == 2 }, "old keys go")
	stop()
}
