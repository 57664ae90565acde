package outbox

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
)

// broker returns a connection to the shared broker and the name of a quorum queue of the test's own on it.
func broker(tb testing.TB) (*reconnect.Conn, string) {
	tb.Helper()
	return brokerAt(tb, testenv.Shared(tb).URL())
}

func brokerAt(tb testing.TB, url string) (*reconnect.Conn, string) {
	tb.Helper()
	ctx := context.Background()
	conn, err := reconnect.Dial(ctx, url, reconnect.Config{Name: testenv.Name(tb, "outbox")})
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, conn.Close(ctx)) })
	queue := testenv.Name(tb, "outbox")
	require.NoError(tb, conn.Declare(ctx, reconnect.Topology{Queues: []reconnect.Queue{{Name: queue}}}))
	tb.Cleanup(func() {
		ch, err := conn.Channel(ctx)
		if err == nil {
			_, err = ch.QueueDelete(queue, false, false, false)
			_ = ch.Close()
		}
		require.NoError(tb, err)
	})
	return conn, queue
}

// publisher returns one with the window that a relay should have.
func publisher(tb testing.TB, conn *reconnect.Conn) *reconnect.Publisher {
	tb.Helper()
	pub, err := conn.NewPublisher(reconnect.PublisherConfig{Window: 1000})
	require.NoError(tb, err)
	return pub
}

// fill stores n messages of 256 bytes for queue, by the statement that Enqueue uses.
func fill(tb testing.TB, box *Outbox, queue string, n int) {
	tb.Helper()
	body := make([]byte, 256)
	for n > 0 {
		some := min(n, 1000)
		msgs := make([]Message, some)
		for i := range msgs {
			msgs[i] = Message{Key: queue, Publishing: amqp.Publishing{Body: body, ContentType: "application/octet-stream", Headers: amqp.Table{
				"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tenant": "one"}}}
		}
		require.NoError(tb, pgx.BeginFunc(context.Background(), box.pool, func(tx pgx.Tx) error {
			return box.Enqueue(context.Background(), tx, msgs...)
		}))
		n -= some
	}
}

const drainRows = 50_000

// Target 1: draining a backlog, beside what others do, in interleaved rounds. Rows a second and ratios are of medians. The
// database syncs its commits to the disk.
func BenchmarkTarget1Drain(b *testing.B) {
	node := testenv.PostgresNode(b)
	url := node.URL()
	box := boxIn(b, newPool(b, url, nil), Config{})
	exec(b, box.pool, "ALTER SYSTEM SET fsync = on")
	exec(b, box.pool, "SELECT pg_reload_conf()")
	b.Cleanup(func() { exec(b, box.pool, "ALTER SYSTEM RESET fsync"); exec(b, box.pool, "SELECT pg_reload_conf()") })
	conn, queue := broker(b)
	purge := func() {
		ch, err := conn.Channel(context.Background())
		require.NoError(b, err)
		_, err = ch.QueuePurge(queue, false)
		require.NoError(b, err)
		require.NoError(b, ch.Close())
	}
	rates := map[string][]float64{}
	run := func(name string, rows int, drain func(rows int)) {
		fill(b, box, queue, rows)
		exec(b, box.pool, "VACUUM ANALYZE outbox")
		start := time.Now()
		drain(rows)
		rates[name] = append(rates[name], float64(rows)/time.Since(start).Seconds())
		exec(b, box.pool, "TRUNCATE outbox")
		purge()
	}
	var self, server []float64
	b.ResetTimer()
	for range 3 * b.N {
		run("relay", drainRows, func(rows int) {
			mine := ownCPU(b)
			r := relay(b, box, publisher(b, conn), RelayConfig{})
			testenv.Eventually(b, time.Minute, func() bool { return r.settled(rows) }, "drained")
			theirs := sessionsCPU(b, url, "warren outbox relay")
			self = append(self, float64((ownCPU(b)-mine).Microseconds())/float64(rows))
			server = append(server, float64(theirs.Microseconds())/float64(rows))
			require.NoError(b, r.stop(b))
		})
		run("raw", drainRows, func(rows int) { drainRaw(b, publisher(b, conn), queue, rows) })
		run("lease", drainRows/10, func(int) { drainByLease(b, box, conn, 4, 200) })
		run("naive", drainRows/50, func(int) { drainNaively(b, box, publisher(b, conn)) })
	}
	median := func(v []float64) float64 { slices.Sort(v); return v[len(v)/2] }
	ours := median(rates["relay"])
	b.ReportMetric(ours, "rows/s")
	for _, name := range []string{"raw", "lease", "naive"} {
		b.ReportMetric(median(rates[name]), name+"_rows/s")
		b.ReportMetric(ours/median(rates[name]), "x_"+name)
	}
	b.ReportMetric(median(self), "relay_cpu_µs/row")
	b.ReportMetric(median(server), "pg_cpu_µs/row")
	b.ReportMetric(0, "ns/op")
}

// settled reports whether n rows were confirmed and deleted.
func (r *running) settled(n int) bool {
	var left int
	err := r.outbox.pool.QueryRow(context.Background(), "SELECT count(*) FROM (SELECT FROM outbox LIMIT 1) AS first").Scan(&left)
	return err == nil && left == 0
}

// drainRaw publishes as many messages from memory, in one call, which keeps a whole window in flight: no database.
func drainRaw(tb testing.TB, pub *reconnect.Publisher, queue string, rows int) {
	msgs := make([]reconnect.Message, rows)
	body := make([]byte, 256)
	for i := range msgs {
		msgs[i] = reconnect.Message{Key: queue, Publishing: amqp.Publishing{Body: body, MessageId: uuid.NewString(),
			ContentType: "application/octet-stream", Headers: amqp.Table{
				"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tenant": "one"}}}
	}
	require.NoError(tb, pub.PublishBatch(context.Background(), msgs))
}

// drainByLease is the design with leased rows: several workers claim some with SKIP LOCKED, wait for the confirmation of each
// on a channel of their own, and mark all of them.
func drainByLease(tb testing.TB, box *Outbox, conn *reconnect.Conn, workers, claim int) {
	ctx := context.Background()
	exec(tb, box.pool, "ALTER TABLE outbox ADD COLUMN IF NOT EXISTS locked_until timestamptz, ADD COLUMN IF NOT EXISTS published_at timestamptz")
	exec(tb, box.pool, "CREATE INDEX IF NOT EXISTS outbox_lease_pending ON outbox (id) WHERE published_at IS NULL")
	var all sync.WaitGroup
	for range workers {
		pub := publisher(tb, conn)
		all.Go(func() {
			for {
				rows, err := box.pool.Query(ctx, `UPDATE outbox SET locked_until = now() + interval '30 s' WHERE id IN (
	SELECT id FROM outbox WHERE published_at IS NULL AND (locked_until IS NULL OR locked_until < now()) ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED)
RETURNING id, `+rowColumns, claim)
				if err != nil {
					tb.Error(err)
					return
				}
				var ids []int64
				var msgs []reconnect.Message
				for rows.Next() {
					var o outgoing
					if err := rows.Scan(append([]any{&o.id}, o.row.targets()...)...); err != nil {
						tb.Error(err)
						return
					}
					m, _ := o.row.message()
					ids, msgs = append(ids, o.id), append(msgs, m)
				}
				if len(ids) == 0 {
					return
				}
				for _, m := range msgs {
					if err := pub.Publish(ctx, m.Exchange, m.Key, m.Publishing); err != nil {
						tb.Error(err)
						return
					}
				}
				if _, err := box.pool.Exec(ctx, "UPDATE outbox SET published_at = now(), locked_until = NULL WHERE id = ANY ($1)", ids); err != nil {
					tb.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	exec(tb, box.pool, "DROP INDEX outbox_lease_pending")
	exec(tb, box.pool, "ALTER TABLE outbox DROP COLUMN locked_until, DROP COLUMN published_at")
}

// drainNaively publishes a row, waits for its confirmation, marks it, and goes on to the next.
func drainNaively(tb testing.TB, box *Outbox, pub *reconnect.Publisher) {
	ctx := context.Background()
	exec(tb, box.pool, "ALTER TABLE outbox ADD COLUMN published_at timestamptz")
	for {
		rows, err := box.pool.Query(ctx, "SELECT id, "+rowColumns+" FROM outbox WHERE published_at IS NULL ORDER BY id LIMIT 100")
		require.NoError(tb, err)
		var found []outgoing
		for rows.Next() {
			var o outgoing
			require.NoError(tb, rows.Scan(append([]any{&o.id}, o.row.targets()...)...))
			found = append(found, o)
		}
		if len(found) == 0 {
			break
		}
		for _, o := range found {
			m, err := o.row.message()
			require.NoError(tb, err)
			require.NoError(tb, pub.Publish(ctx, m.Exchange, m.Key, m.Publishing))
			exec(tb, box.pool, "UPDATE outbox SET published_at = now() WHERE id = $1", o.id)
		}
	}
	exec(tb, box.pool, "ALTER TABLE outbox DROP COLUMN published_at")
}

// ownCPU is the processor time that this process has used.
func ownCPU(tb testing.TB) time.Duration {
	var u syscall.Rusage
	require.NoError(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// sessionsCPU is the processor time of the server's processes for sessions of an application, where they run on this machine.
func sessionsCPU(tb testing.TB, url, application string) (total time.Duration) {
	for _, pid := range testenv.Sessions(tb, url, application) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		for _, field := range fields[11:13] {
			ticks, err := strconv.Atoi(field)
			require.NoError(tb, err)
			total += time.Duration(ticks) * 10 * time.Millisecond
		}
	}
	return total
}

// Target 2: an idle relay, from the return of the commit to the consumer, beside publishing directly: with the relay in the
// same program, and in another one, which is woken by a notification.
func BenchmarkTarget2Latency(b *testing.B) {
	const messages = 100
	url := testenv.Postgres(b)
	conn, queue := broker(b)
	pub := publisher(b, conn)
	here := boxIn(b, newPool(b, url, nil), Config{})
	there := boxIn(b, newPool(b, url, nil), Config{}) // its relay hears of here's commits by notification only
	arrived := make(chan string, 10)
	ch, err := testenv.Shared(b).Dial(b).Channel()
	require.NoError(b, err)
	deliveries, err := ch.Consume(queue, "", true, false, false, false, nil)
	require.NoError(b, err)
	go func() {
		for d := range deliveries {
			arrived <- d.Type
		}
	}()
	took := map[string][]float64{}
	one := func(way string, n int, send func(kind string)) {
		kind := fmt.Sprint(way, n)
		send(kind)
		start := time.Now() // of the return of the commit; publishing directly has none, and begins before
		if way == "direct" {
			start = start.Add(-directTook)
		}
		select {
		case got := <-arrived:
			require.Equal(b, kind, got)
		case <-time.After(patience):
			b.Fatal("it did not come")
		}
		took[way] = append(took[way], float64(time.Since(start).Microseconds())/1000)
		time.Sleep(20 * time.Millisecond) // idle again
	}
	for range b.N {
		for way, box := range map[string]*Outbox{"wake": here, "notify": there} {
			r := relay(b, box, pub, RelayConfig{})
			testenv.Eventually(b, patience, func() bool { return leading(r) }, "it leads")
			for n := range messages {
				one(way, n, func(kind string) {
					storeAll(b, here, Message{Key: queue, Publishing: amqp.Publishing{Type: kind}})
				})
				one("direct", n, func(kind string) {
					began := time.Now()
					require.NoError(b, pub.Publish(context.Background(), "", queue, amqp.Publishing{Type: kind}))
					directTook = time.Since(began)
				})
			}
			require.NoError(b, r.stop(b))
		}
	}
	for way, ms := range took {
		slices.Sort(ms)
		b.ReportMetric(ms[len(ms)/2], way+"_p50_ms")
		b.ReportMetric(ms[len(ms)*99/100], way+"_p99_ms")
	}
	b.ReportMetric(0, "ns/op")
}

var directTook time.Duration
