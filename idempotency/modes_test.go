package idempotency_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/idempotency"
	"github.com/warrenmq/warren/internal/testenv"
)

// Every way of pgx to send a statement, those that poolers ask for among them; these behind a pooler of transactions as well.
func TestQueryExecModes(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	pooler := testenv.Pooler(t, d.url, 2)
	for _, way := range []struct {
		name, url string
		mode      pgx.QueryExecMode
	}{
		{"cache statement", d.url, pgx.QueryExecModeCacheStatement},
		{"cache describe", d.url, pgx.QueryExecModeCacheDescribe},
		{"describe exec", d.url, pgx.QueryExecModeDescribeExec},
		{"exec", d.url, pgx.QueryExecModeExec},
		{"simple protocol", d.url, pgx.QueryExecModeSimpleProtocol},
		{"exec, pooler", pooler, pgx.QueryExecModeExec},
		{"simple protocol, pooler", pooler, pgx.QueryExecModeSimpleProtocol},
	} {
		t.Run(way.name, func(t *testing.T) {
			cfg, err := pgxpool.ParseConfig(way.url)
			require.NoError(t, err)
			cfg.ConnConfig.DefaultQueryExecMode = way.mode
			pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
			require.NoError(t, err)
			defer pool.Close()
			for _, uuids := range []bool{false, true} {
				table := map[bool]string{false: "inbox", true: "ids"}[uuids]
				inbox, err := idempotency.New(pool, way.name, idempotency.Config{
					Table: table, UUIDKeys: uuids, Logger: quiet, Retention: time.Hour,
				})
				require.NoError(t, err)
				require.NoError(t, inbox.Migrate(t.Context()))
				one, two := "00000000-0000-7000-8000-00000000000a", "00000000-0000-7000-8000-00000000000b"
				for _, want := range []bool{true, false} {
					fresh, err := inbox.Do(t.Context(), one, addA)
					require.NoError(t, err)
					require.Equal(t, want, fresh)
				}
				require.NoError(t, inbox.DoBatch(t.Context(), []string{two, one}, func(_ context.Context, _ pgx.Tx, fresh []int) error {
					require.Equal(t, []int{0}, fresh)
					return nil
				}))
				for range 2 {
					result, err := inbox.DoResult(t.Context(), "00000000-0000-7000-8000-00000000000c", []byte{0, 0xff}, func(context.Context, pgx.Tx) ([]byte, error) {
						return []byte("\x00\xff'\\"), nil
					})
					require.NoError(t, err)
					require.Equal(t, "\x00\xff'\\", string(result))
				}
				d.exec("UPDATE " + table + " SET done_at = now() - interval '2 hours'")
				stop := runInbox(t, inbox)
				testenv.Eventually(t, patience, func() bool {
					return d.number("SELECT count(*) FROM "+table+" WHERE consumer = $1", way.name) == 0
				}, "keys are removed")
				stop()
			}
		})
	}
}
