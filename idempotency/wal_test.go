package idempotency_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/idempotency"
)

// Target 12: what a key costs in WAL, with all that finding it again and removing it needs, but without the images of whole
// pages after a checkpoint, which say nothing about it.
func TestWALOfAKey(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		uuids  bool
		newKey func() string
		most   float64
	}{
		{"uuid v7, UUIDKeys", true, v7, 250},
		{"uuid v7 as text", false, v7, 330},
		{"uuid v4 as text", false, uuid.NewString, 500},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := newDB(t)
			d.inbox("billing", idempotency.Config{UUIDKeys: tt.uuids})
			const keys = 20_000
			distinct := make([]string, keys)
			for i := range distinct {
				distinct[i] = tt.newKey()
			}
			perKey := d.wal(idempotency.ExplainClaim(tt.uuids), "billing", distinct, "5s") / keys
			t.Logf("%.0f bytes of WAL for a key", perKey)
			require.LessOrEqual(t, perKey, tt.most)
			require.Zero(t, d.wal(idempotency.ExplainClaim(tt.uuids), "billing", distinct[:100], "5s"), "known keys")
			require.Equal(t, 1, d.number("SELECT count(*) FROM pg_index WHERE indrelid = 'inbox'::regclass"), "one index")
		})
	}
}

func v7() string { return uuid.Must(uuid.NewV7()).String() }

// wal returns the bytes of WAL, without full page images, that an EXPLAIN (ANALYZE, WAL, FORMAT JSON) counted.
func (d *db) wal(explain string, args ...any) (bytes float64) {
	d.t.Helper()
	d.direct(func(ctx context.Context, conn *pgx.Conn) error {
		var plans []struct {
			Plan struct {
				Bytes float64 `json:"WAL Bytes"`
				FPI   float64 `json:"WAL FPI"`
			}
		}
		var text []byte
		if err := conn.QueryRow(ctx, explain, args...).Scan(&text); err != nil {
			return err
		}
		if err := json.Unmarshal(text, &plans); err != nil || len(plans) != 1 {
			return fmt.Errorf("plan %s: %w", text, err)
		}
		if plans[0].Plan.FPI > 0 {
			d.t.Logf("%.0f full page images are in it", plans[0].Plan.FPI)
		}
		bytes = plans[0].Plan.Bytes
		return nil
	})
	return bytes
}
