package outbox

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/migrate"
	"github.com/warrenmq/warren/internal/pg"
	"github.com/warrenmq/warren/internal/testenv"
)

// relations counts the tables and indexes in the test's database that are not PostgreSQL's own.
func relations(t testing.TB, pool *pgxpool.Pool) int {
	return scan[int](t, pool, `SELECT count(*) FROM pg_class WHERE relnamespace NOT IN
		('pg_catalog'::regnamespace, 'information_schema'::regnamespace) AND relnamespace::regnamespace::text !~ '^pg_toast'`)
}

// TestMigrateConcurrently: every instance of a service migrates when it starts. Each gets the tables, and no error.
func TestMigrateConcurrently(t *testing.T) {
	t.Parallel()
	for _, isolation := range []string{"read committed", "serializable"} {
		t.Run(isolation, func(t *testing.T) {
			u := testenv.Postgres(t)
			pool := newPool(t, u, func(cfg *pgxpool.Config) {
				cfg.MaxConns = 16
				cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = isolation
				cfg.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on" // means nothing to who asks for more
			})
			require.NoError(t, together(16, func(n int) error { // of two versions of a service, one with more lanes than the other
				box, err := New(pool, Config{Schema: "mail", Lanes: 1 + n%2})
				if err != nil {
					return err
				}
				return box.Migrate(t.Context())
			}))
			require.Equal(t, 3, scan[int](t, pool, "SELECT count(*) FROM mail.outbox_schema"), "each step once")
			require.Equal(t, []int{0, 1}, lanesOf(t, pool, "mail"))
		})
	}
}

func lanesOf(t testing.TB, pool *pgxpool.Pool, schema string) []int {
	t.Helper()
	lanes, err := tables{schema: schema, base: "outbox"}.lanes(context.Background(), pool)
	require.NoError(t, err)
	return lanes
}

// TestMigrateAllOrNothing: a step that fails leaves nothing of those before it.
func TestMigrateAllOrNothing(t *testing.T) {
	t.Parallel()
	pool := newPool(t, testenv.Postgres(t), nil)
	exec(t, pool, "CREATE TABLE outbox_archive ()")
	box, err := New(pool, Config{})
	require.NoError(t, err)
	require.ErrorContains(t, box.Migrate(t.Context()), "shared, version 1")
	require.Equal(t, 1, relations(t, pool))
	exec(t, pool, "DROP TABLE outbox_archive")
	require.NoError(t, box.Migrate(t.Context()))
}

// TestMigrateCutOff: a session that ends while it migrates leaves nothing that stands in the way of the next.
func TestMigrateCutOff(t *testing.T) {
	t.Parallel()
	u := testenv.Postgres(t)
	pool := newPool(t, u, func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["application_name"] = "migrating" })
	box, err := New(pool, Config{})
	require.NoError(t, err)
	holder := testenv.HoldTransaction(t, u, "CREATE TABLE outbox_lease ()") // blocks the step at the name
	result := make(chan error, 1)
	go func() { result <- box.Migrate(context.Background()) }()
	other := newPool(t, u, nil)
	testenv.Eventually(t, patience, func() bool {
		return scan[int](t, other, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"+
			" AND application_name = 'migrating' AND wait_event_type = 'Lock'") == 1
	}, "the migration waits")
	testenv.TerminateSessions(t, u, "migrating")
	require.Error(t, <-result)
	holder.Rollback()
	require.Zero(t, relations(t, other))
	require.NoError(t, box.Migrate(t.Context()))
}

// role makes an account that may only connect, and returns a pool of it.
func role(t *testing.T, owner *pgxpool.Pool) (name string, pool *pgxpool.Pool) {
	t.Helper()
	name = "r" + strings.ReplaceAll(uuid.NewString(), "-", "")
	exec(t, owner, fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD 'secret'", name))
	t.Cleanup(func() {
		exec(t, owner, "DROP OWNED BY "+name)
		exec(t, owner, "DROP ROLE "+name)
	})
	u, err := url.Parse(owner.Config().ConnString())
	require.NoError(t, err)
	u.User = url.UserPassword(name, "secret")
	return name, newPool(t, u.String(), nil)
}

// TestRights: a service needs the right to insert, and Migrate none beyond reading once the tables are there.
func TestRights(t *testing.T) {
	t.Parallel()
	box := newBox(t, Config{Schema: "mail"})
	name, pool := role(t, box.pool)
	service, err := New(pool, Config{Schema: "mail"})
	require.NoError(t, err)
	require.Error(t, service.Migrate(t.Context()), "it may not even look")
	exec(t, box.pool, "GRANT USAGE ON SCHEMA mail TO "+name)
	exec(t, box.pool, "GRANT SELECT ON mail.outbox_schema TO "+name)
	require.NoError(t, service.Migrate(t.Context()))

	exec(t, box.pool, fmt.Sprintf("GRANT INSERT ON mail.outbox, mail.outbox_scheduled TO %s", name))
	require.NoError(t, service.InTx(t.Context(), func(tx pgx.Tx) error {
		return service.Enqueue(t.Context(), tx, Message{Key: "k"}, Message{Key: "k", NotBefore: time.Now().Add(time.Hour)})
	}))
	require.Len(t, laneRows(t, box, 0), 1)
}

// TestDDL: what is printed for another tool makes what Migrate makes, which then has nothing to do.
func TestDDL(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{{}, {Schema: "mail", Table: "post", Lanes: 3}} {
		migrated := newBox(t, cfg)
		pool := newPool(t, testenv.Postgres(t), nil)
		box, err := New(pool, cfg)
		require.NoError(t, err)
		require.Equal(t, migrated.DDL(), box.DDL())
		exec(t, pool, box.DDL())

		columns := func(pool *pgxpool.Pool) string {
			return scan[string](t, pool, `SELECT string_agg(a.attrelid::regclass::text || '.' || a.attname || ' ' ||
					format_type(a.atttypid, a.atttypmod) || CASE WHEN a.attnotnull THEN ' not null' ELSE '' END ||
					coalesce(' ' || array_to_string(c.reloptions, ','), ''), E'\n' ORDER BY a.attrelid::regclass::text, a.attnum)
				FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
				WHERE a.attnum > 0 AND c.relnamespace IN (SELECT oid FROM pg_namespace WHERE nspname IN ('public', 'mail'))`)
		}
		require.Equal(t, columns(migrated.pool), columns(pool))
		applied := scan[string](t, pool, "SELECT string_agg(xmin::text, ',' ORDER BY unit) FROM "+box.tables.side("schema"))
		require.NoError(t, box.Migrate(t.Context()))
		require.Equal(t, applied, scan[string](t, pool, "SELECT string_agg(xmin::text, ',' ORDER BY unit) FROM "+box.tables.side("schema")))
	}
}

// TestNewerVersion: a service that has not been upgraded yet starts beside one that has.
func TestNewerVersion(t *testing.T) {
	t.Parallel()
	box := newBox(t, Config{})
	exec(t, box.pool, "INSERT INTO outbox_schema (unit, version) VALUES ('shared', 99), ('lane 0', 99), ('unheard of', 1)")
	require.NoError(t, box.Migrate(t.Context()))
}

// TestMoreLanes: lanes are added, and those that a program does not use any more are still known.
func TestMoreLanes(t *testing.T) {
	t.Parallel()
	box := newBox(t, Config{})
	require.Equal(t, []int{0}, lanesOf(t, box.pool, ""))
	require.NoError(t, box.InTx(t.Context(), func(tx pgx.Tx) error { return box.Enqueue(t.Context(), tx, Message{Key: "k"}) }))
	more := boxIn(t, box.pool, Config{Lanes: 64})
	require.Len(t, lanesOf(t, box.pool, ""), 64)
	require.Len(t, laneRows(t, more, 0), 1, "the first lane is the one there was")
	fewer := boxIn(t, box.pool, Config{Lanes: 2})
	require.Len(t, lanesOf(t, box.pool, ""), 64)
	stats, err := fewer.Stats(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(1), stats.Waiting)
}

// TestTwoOutboxes in one database know nothing of each other: by name, by schema, or by search_path alone.
func TestTwoOutboxes(t *testing.T) {
	t.Parallel()
	u := testenv.Postgres(t)
	admin := newPool(t, u, nil)
	exec(t, admin, "CREATE SCHEMA a; CREATE SCHEMA b")
	inPath := func(path string) *pgxpool.Pool {
		return newPool(t, u, func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["search_path"] = path })
	}
	boxes := []*Outbox{
		boxIn(t, admin, Config{}), boxIn(t, admin, Config{Table: "other"}), boxIn(t, admin, Config{Schema: "c"}),
		boxIn(t, inPath("a"), Config{}), boxIn(t, inPath("b, public"), Config{Table: "more", Lanes: 2}),
	}
	locks, channels := map[int64]bool{}, map[string]bool{}
	for n, box := range boxes {
		for range n + 1 {
			require.NoError(t, box.InTx(t.Context(), func(tx pgx.Tx) error {
				return box.Enqueue(t.Context(), tx, Message{Key: "k"}, Message{Key: "k", NotBefore: time.Now().Add(time.Hour)})
			}))
		}
		for lane := range box.cfg.Lanes {
			locks[scan[int64](t, box.pool, "SELECT "+box.tables.lockKey(lane))] = true
		}
		channels[scan[string](t, box.pool, "SELECT "+box.tables.channel())] = true
	}
	for n, box := range boxes {
		stats, err := box.Stats(t.Context())
		require.NoError(t, err)
		require.Equal(t, []int64{int64(n + 1), int64(n + 1)}, []int64{stats.Waiting, stats.Scheduled})
	}
	require.Len(t, locks, 6)
	require.Len(t, channels, 5)
}

// TestAnyName: names are quoted wherever they go.
func TestAnyName(t *testing.T) {
	t.Parallel()
	pool := newPool(t, testenv.Postgres(t), nil)
	for _, cfg := range []Config{
		{Schema: `Sche"ma; --`, Table: `it's "a" \ tåble`, Lanes: 2, Archive: true},
		{Schema: strings.Repeat("s", 63), Table: strings.Repeat("t", 46), Lanes: 64, Archive: true},
		{Table: "select", Archive: true},
	} {
		box := boxIn(t, pool, cfg)
		require.NoError(t, box.InTx(t.Context(), func(tx pgx.Tx) error { return box.Enqueue(t.Context(), tx, Message{Key: "k"}) }))
		stats, err := box.Stats(t.Context())
		require.NoError(t, err)
		require.Equal(t, int64(1), stats.Waiting)
		require.NoError(t, box.tables.makePartitions(t.Context(), pool, time.Now()))
		testenv.Eventually(t, patience, func() bool { // it has a second for it
			box.notifyRelays()
			return box.notifyFailures.Load() == 0
		}, "%q is notified", cfg.Table)
	}
}

// TestArchivePartitions: days get their tables ahead of time, whoever makes them, and a day that has rows already does
// without.
func TestArchivePartitions(t *testing.T) {
	t.Parallel()
	box := newBox(t, Config{Archive: true})
	now := time.Date(2026, 12, 30, 23, 59, 59, 0, time.FixedZone("", -3600)) // the 31st in UTC
	insert := "INSERT INTO outbox_archive (lane, id, message_id, exchange, routing_key, payload, created_at, sent_at)" +
		" VALUES (0, 1, gen_random_uuid(), '', '', '', now(), $1) RETURNING tableoid::regclass::text"
	require.Equal(t, "outbox_archive_default", scan[string](t, box.pool, insert, now.AddDate(0, 0, 1)))
	require.NoError(t, together(8, func(int) error {
		err := box.tables.makePartitions(t.Context(), box.pool, now)
		for tries := 1; pg.Code(err) == pg.LockNotAvailable && tries < 10; tries++ { // it waits a second at most for the others
			err = box.tables.makePartitions(t.Context(), box.pool, now)
		}
		return err
	}))
	require.Equal(t, "outbox_archive_20261231", scan[string](t, box.pool, insert, now))
	require.Equal(t, "outbox_archive_20261231", scan[string](t, box.pool, insert, time.Date(2026, 12, 31, 0, 0, 0, 0, time.UTC)))
	require.Equal(t, "outbox_archive_default", scan[string](t, box.pool, insert, time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)))
	require.Equal(t, "outbox_archive_20270102", scan[string](t, box.pool, insert, time.Date(2027, 1, 2, 0, 0, 0, 0, time.UTC)))
	require.NoError(t, box.tables.makePartitions(t.Context(), box.pool, now.AddDate(0, 0, 1)))
	require.Equal(t, "outbox_archive_20270103", scan[string](t, box.pool, insert, time.Date(2027, 1, 3, 0, 0, 0, 0, time.UTC)))

	reader := testenv.HoldTransaction(t, box.pool.Config().ConnString(), "SELECT FROM outbox_archive")
	start := time.Now()
	require.Error(t, box.tables.makePartitions(t.Context(), box.pool, now.AddDate(0, 0, 10)))
	require.Less(t, time.Since(start), 9*time.Second, "three waits of a second")
	reader.Rollback()
	require.NoError(t, box.tables.makePartitions(t.Context(), box.pool, now.AddDate(0, 0, 10)))
}

// TestP60HotTable: the hot table has one index, gives ids one at a time, and is vacuumed by the number of rows, not by
// their share.
func TestP60HotTable(t *testing.T) {
	t.Parallel()
	box := newBox(t, Config{Lanes: 2})
	for lane := range 2 {
		oid := box.tables.oid(lane)
		require.Equal(t, 1, scan[int](t, box.pool, "SELECT count(*) FROM pg_index WHERE indrelid = "+oid))
		require.Equal(t, int64(1), scan[int64](t, box.pool,
			"SELECT seqcache FROM pg_sequence WHERE seqrelid = pg_get_serial_sequence("+literal(box.tables.lane(lane))+", 'id')::regclass"))
		require.Contains(t, scan[string](t, box.pool, "SELECT reloptions::text FROM pg_class WHERE oid = "+oid), "autovacuum_vacuum_scale_factor=0")
	}
}

func TestCheckName(t *testing.T) {
	for name, want := range map[string]string{
		"": "empty", strings.Repeat("x", 64): "64 bytes, at most 63", "\xff": "not valid UTF-8", "a\x00": "NUL",
	} {
		require.ErrorContains(t, migrate.CheckName("F", name, 0), want)
	}
	require.NoError(t, migrate.CheckName("F", strings.Repeat("x", 63), 0))
}
