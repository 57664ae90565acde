package outbox

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// typical returns messages with a body of 256 bytes and 96 bytes of headers, as the measurements of the design have them.
func typical(n int) []Message {
	msgs := make([]Message, n)
	for i := range msgs {
		msgs[i] = Message{Exchange: "", Key: "orders", Publishing: amqp.Publishing{
			Headers: amqp.Table{"tenant": "acme", "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
			Body:    []byte(strings.Repeat("x", 256)),
		}}
	}
	return msgs
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// BenchmarkTarget10Enqueue: enqueueing 100 messages against a loop of Exec, on pgx and on database/sql. Target: at most
// 0.35 of it.
func BenchmarkTarget10Enqueue(b *testing.B) {
	const n, rounds = 100, 15
	box := newBox(b, Config{})
	db := stdlib.OpenDBFromPool(box.pool)
	defer db.Close()
	msgs := typical(n)
	const single = "INSERT INTO outbox (message_id, exchange, routing_key, headers, payload) VALUES ($1, $2, $3, $4, $5)"
	ctx := context.Background()
	begin := func() (pgx.Tx, func()) {
		tx, err := box.pool.Begin(ctx)
		require.NoError(b, err)
		return tx, func() { require.NoError(b, tx.Rollback(ctx)) }
	}
	took := func(fn func()) float64 {
		start := time.Now()
		fn()
		return float64(time.Since(start).Microseconds()) / n
	}
	ways := map[string]func() float64{
		"pgx": func() float64 {
			tx, end := begin()
			defer end()
			return took(func() { require.NoError(b, box.Enqueue(ctx, tx, msgs...)) })
		},
		"pgx-loop": func() float64 {
			tx, end := begin()
			defer end()
			return took(func() {
				for i := range msgs {
					_, err := tx.Exec(ctx, single, uuid.Must(uuid.NewV7()).String(), "", msgs[i].Key, string(headersOf(msgs[i].Headers)), msgs[i].Body)
					require.NoError(b, err)
				}
			})
		},
		"sql": func() float64 {
			tx, err := db.BeginTx(ctx, nil)
			require.NoError(b, err)
			defer func() { require.NoError(b, tx.Rollback()) }()
			return took(func() { require.NoError(b, box.Enqueue(ctx, SQL(tx), msgs...)) })
		},
		"sql-loop": func() float64 {
			tx, err := db.BeginTx(ctx, nil)
			require.NoError(b, err)
			defer func() { require.NoError(b, tx.Rollback()) }()
			return took(func() {
				for i := range msgs {
					_, err := tx.ExecContext(ctx, single, uuid.Must(uuid.NewV7()).String(), "", msgs[i].Key, string(headersOf(msgs[i].Headers)), msgs[i].Body)
					require.NoError(b, err)
				}
			})
		},
	}
	for b.Loop() {
		figures := map[string][]float64{}
		for range rounds {
			for name, way := range ways {
				figures[name] = append(figures[name], way())
			}
		}
		for _, name := range []string{"pgx", "sql"} {
			ours, loop := median(figures[name]), median(figures[name+"-loop"])
			b.ReportMetric(ours, name+"-µs/msg")
			b.ReportMetric(loop, name+"-loop-µs/msg")
			b.ReportMetric(ours/loop, name+"/loop")
		}
	}
}

// TestTarget11WAL: a message's life, insert and delete, writes at most 620 bytes of WAL, without full page images.
func TestTarget11WAL(t *testing.T) {
	const rows = 2000
	node := testenv.PostgresNode(t)
	box := boxIn(t, newPool(t, node.URL(), nil), Config{})
	exec(t, box.pool, "ALTER SYSTEM SET full_page_writes = off")
	exec(t, box.pool, "ALTER SYSTEM SET autovacuum = off")
	exec(t, box.pool, "SELECT pg_reload_conf()")
	t.Cleanup(func() {
		exec(t, box.pool, "ALTER SYSTEM RESET full_page_writes")
		exec(t, box.pool, "ALTER SYSTEM RESET autovacuum")
		exec(t, box.pool, "SELECT pg_reload_conf()")
	})
	testenv.Eventually(t, patience, func() bool { return scan[string](t, box.pool, "SHOW full_page_writes") == "off" }, "reloaded")
	exec(t, box.pool, "CHECKPOINT")
	life := func(table string, insert func(msgs []Message)) float64 {
		before := scan[string](t, box.pool, "SELECT pg_current_wal_insert_lsn()::text")
		for range rows / 100 {
			insert(typical(100))
		}
		exec(t, box.pool, "DELETE FROM "+table)
		return scan[float64](t, box.pool, "SELECT (pg_current_wal_insert_lsn() - $1::text::pg_lsn)::float8", before) / rows
	}
	ours := life("outbox", func(msgs []Message) { enqueue(t, box, msgs...) })

	// What other designs write: a status that is updated twice, and an index for it.
	exec(t, box.pool, `CREATE TABLE other (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, message_id uuid, exchange text, routing_key text,
		headers jsonb, payload bytea, status text NOT NULL DEFAULT 'pending', created_at timestamptz DEFAULT now())`)
	exec(t, box.pool, "CREATE INDEX ON other (id) WHERE status = 'pending'")
	other := life("other", func(msgs []Message) {
		for i := range msgs {
			exec(t, box.pool, "INSERT INTO other (message_id, exchange, routing_key, headers, payload) VALUES ($1, '', $2, $3, $4)",
				uuid.NewString(), msgs[i].Key, string(headersOf(msgs[i].Headers)), msgs[i].Body)
		}
		exec(t, box.pool, "UPDATE other SET status = 'running' WHERE status = 'pending'")
		exec(t, box.pool, "UPDATE other SET status = 'done' WHERE status = 'running'")
	})
	t.Logf("WAL of a message's life: %.0f B; with a status column and its index: %.0f B", ours, other)
	require.LessOrEqual(t, ours, 620.0)
}

// BenchmarkTarget3WakeUp: transactions of 32 writers, each with an update and a message, on a disk that takes a
// millisecond to sync: without any wake-up, with Wake after the commit, and with a trigger that notifies in it. Target:
// at least 0.85 with Wake.
func BenchmarkTarget3WakeUp(b *testing.B) {
	const writers, pairs, each = 32, 9, 700 * time.Millisecond
	node := testenv.PostgresNode(b)
	pool := newPool(b, node.URL(), func(cfg *pgxpool.Config) { cfg.MaxConns = writers + 2 })
	for _, sql := range []string{"SET fsync = on", "SET commit_delay = 1000", "SET commit_siblings = 0"} {
		exec(b, pool, "ALTER SYSTEM "+sql)
	}
	exec(b, pool, "SELECT pg_reload_conf()")
	b.Cleanup(func() {
		for _, sql := range []string{"SET fsync = off", "RESET commit_delay", "RESET commit_siblings"} {
			exec(b, pool, "ALTER SYSTEM "+sql)
		}
		exec(b, pool, "SELECT pg_reload_conf()")
	})
	plain, triggered := boxIn(b, pool, Config{}), boxIn(b, pool, Config{Table: "triggered"})
	exec(b, pool, "CREATE TABLE accounts AS SELECT i AS id, 0 AS n FROM generate_series(0, 31) i")
	exec(b, pool, "ALTER TABLE accounts ADD PRIMARY KEY (id)")
	exec(b, pool, `CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_notify(''told'', ''''); RETURN NULL; END'`)
	exec(b, pool, "CREATE TRIGGER told AFTER INSERT ON triggered FOR EACH ROW EXECUTE FUNCTION tell()")

	rate := func(box *Outbox, after func()) float64 {
		ctx, cancel := context.WithTimeout(context.Background(), each)
		defer cancel()
		var commits atomic.Int64
		var running sync.WaitGroup
		for writer := range writers {
			running.Go(func() {
				for ctx.Err() == nil {
					batch := new(pgx.Batch)
					batch.Queue("UPDATE accounts SET n = n + 1 WHERE id = $1", writer)
					require.NoError(b, box.EnqueueBatch(batch, typical(1)...))
					if err := pool.SendBatch(ctx, batch).Close(); err != nil {
						return // the time is up
					}
					commits.Add(1)
					after()
				}
			})
		}
		running.Wait()
		exec(b, pool, fmt.Sprintf("TRUNCATE %s", box.tables.lane(0)))
		return float64(commits.Load()) / each.Seconds()
	}
	for b.Loop() {
		var none, wake, trigger, ratios, trigs []float64
		for n := range pairs {
			first := func() { none = append(none, rate(plain, func() {})) }
			second := func() { wake = append(wake, rate(plain, plain.Wake)) }
			if n%2 == 1 { // whatever the one leaves behind for the other
				first, second = second, first
			}
			first()
			second()
			trigger = append(trigger, rate(triggered, func() {}))
			last := len(none) - 1
			ratios = append(ratios, wake[last]/none[last])
			trigs = append(trigs, trigger[last]/none[last])
			b.Logf("tx/s: %.0f without, %.0f with Wake, %.0f with a trigger", none[last], wake[last], trigger[last])
		}
		b.ReportMetric(median(none), "none-tx/s")
		b.ReportMetric(median(wake), "wake-tx/s")
		b.ReportMetric(median(trigger), "trigger-tx/s")
		b.ReportMetric(median(ratios), "wake/none")
		b.ReportMetric(median(trigs), "trigger/none")
	}
}
