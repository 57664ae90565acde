package outbox

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// way is a way into the outbox. begin returns a transaction of it.
type way struct {
	name  string
	begin func(t *testing.T, box *Outbox) tx
}

// tx is a transaction, whatever it is begun with.
type tx struct {
	enqueue    func(msgs ...Message) error // into what commit commits
	commit     func() error
	rollback   func() error
	statements func() int // that enqueue has run so far
}

var errRollback = errors.New("roll back")

// ways are all there are.
func ways() []way {
	return []way{
		{"pgx", beginPgx(pgx.QueryExecModeCacheStatement)},
		{"pgx, statements not prepared", beginPgx(pgx.QueryExecModeExec)},
		{"pgx, simple protocol", beginPgx(pgx.QueryExecModeSimpleProtocol)},
		{"pgx.Batch", beginBatch},
		{"database/sql", beginSQL},
	}
}

// counted counts the statements that run in a transaction.
type counted struct {
	Tx
	n int
}

func (c *counted) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	c.n++
	return c.Tx.Exec(ctx, sql, args...)
}

func beginPgx(mode pgx.QueryExecMode) func(*testing.T, *Outbox) tx {
	return func(t *testing.T, box *Outbox) tx {
		pool := box.pool
		if mode != pgx.QueryExecModeCacheStatement {
			pool = newPool(t, box.pool.Config().ConnString(), func(cfg *pgxpool.Config) { cfg.ConnConfig.DefaultQueryExecMode = mode })
		}
		ptx, err := pool.Begin(t.Context())
		require.NoError(t, err)
		c := &counted{Tx: ptx}
		return tx{
			enqueue:    func(msgs ...Message) error { return box.Enqueue(t.Context(), c, msgs...) },
			commit:     func() error { return ptx.Commit(t.Context()) },
			rollback:   func() error { return ptx.Rollback(t.Context()) },
			statements: func() int { return c.n },
		}
	}
}

func beginSQL(t *testing.T, box *Outbox) tx {
	db := stdlib.OpenDBFromPool(box.pool)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	stx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	c := &counted{Tx: SQL(stx)}
	return tx{
		enqueue:    func(msgs ...Message) error { return box.Enqueue(t.Context(), c, msgs...) },
		commit:     stx.Commit,
		rollback:   stx.Rollback,
		statements: func() int { return c.n },
	}
}

func beginBatch(t *testing.T, box *Outbox) tx {
	b := new(pgx.Batch)
	return tx{
		enqueue:    func(msgs ...Message) error { return box.EnqueueBatch(b, msgs...) },
		commit:     func() error { return box.pool.SendBatch(t.Context(), b).Close() },
		rollback:   func() error { b.Queue("SELECT 1/0"); return ignore(box.pool.SendBatch(t.Context(), b).Close()) },
		statements: func() int { return b.Len() },
	}
}

// ignore turns the error by which a batch is rolled back into none.
func ignore(err error) error {
	var server *pgconn.PgError
	if errors.As(err, &server) && server.Code == "22012" { // division by zero
		return nil
	}
	return fmt.Errorf("%w: %w", errRollback, err)
}

// TestConformance: a transaction of pgx, a batch and one of database/sql are the same to an outbox.
func TestConformance(t *testing.T) {
	t.Parallel()
	pool := newPool(t, testenv.Postgres(t), nil)
	for _, w := range ways() {
		for name, test := range map[string]func(*testing.T, way, *pgxpool.Pool){
			"everything is kept": conformKept, "order": conformOrder, "rollback": conformRollback, "one statement a lane": conformStatements,
			"a fault stores nothing": conformFault, "later": conformLater, "nothing": conformNothing,
		} {
			t.Run(w.name+"/"+name, func(t *testing.T) { test(t, w, pool) })
		}
	}
}

// conformBox is an outbox of a test's own in the common database.
func conformBox(t *testing.T, pool *pgxpool.Pool, lanes int) *Outbox {
	t.Helper()
	schema := "s" + strings.ReplaceAll(uuid.NewString(), "-", "")
	t.Cleanup(func() { exec(t, pool, "DROP SCHEMA "+schema+" CASCADE") })
	return boxIn(t, pool, Config{Schema: schema, Lanes: lanes})
}

func conformKept(t *testing.T, w way, pool *pgxpool.Pool) {
	box := conformBox(t, pool, 1)
	full := Message{Exchange: "orders", Key: "order.created", OrderingKey: "42", Publishing: amqp.Publishing{
		Headers: everyKind(), ContentType: "text/plain", ContentEncoding: "gzip", DeliveryMode: amqp.Transient, Priority: 9,
		CorrelationId: "c", ReplyTo: "answers", Expiration: "60000", MessageId: uuid.NewString(),
		Timestamp: time.Unix(1767225600, 0).UTC(), Type: "order", AppId: "shop", Body: []byte{0, 0xff, 'a'},
	}}
	x := w.begin(t, box)
	before := time.Now().Add(-time.Minute)
	require.NoError(t, x.enqueue(full, Message{Key: "k"}, Message{Key: "k", JSON: map[string]int{"id": 42}}))
	require.NoError(t, x.commit())

	got := laneMessages(t, box, 0)
	require.Len(t, got, 3)
	require.Equal(t, full.Publishing, got[0].Publishing)
	require.Equal(t, "orders", got[0].Exchange)
	require.Equal(t, "order.created", got[0].Key)
	require.Equal(t, "42", *laneRows(t, box, 0)[0].orderingKey)

	empty := got[1]
	require.Equal(t, uuid.Version(7), uuid.MustParse(empty.MessageId).Version())
	require.True(t, empty.Timestamp.After(before), "the time of enqueueing")
	require.Equal(t, amqp.Publishing{MessageId: empty.MessageId, Timestamp: empty.Timestamp, Body: []byte{}}, empty.Publishing)
	require.Nil(t, laneRows(t, box, 0)[1].orderingKey)

	require.Equal(t, `{"id":42}`, string(got[2].Body))
	require.Equal(t, "application/json", got[2].ContentType)
	require.NotEqual(t, got[1].MessageId, got[2].MessageId)
}

func conformOrder(t *testing.T, w way, pool *pgxpool.Pool) {
	box := conformBox(t, pool, 1)
	x := w.begin(t, box)
	for call := range 3 {
		msgs := make([]Message, 400)
		for i := range msgs {
			msgs[i].Key = fmt.Sprintf("%d.%03d", call, i)
		}
		require.NoError(t, x.enqueue(msgs...))
	}
	require.NoError(t, x.commit())
	rows := laneRows(t, box, 0)
	require.Len(t, rows, 1200)
	for i, r := range rows {
		require.Equal(t, fmt.Sprintf("%d.%03d", i/400, i%400), r.key)
		require.Equal(t, int64(i+1), r.id, "none left out")
	}
}

func conformRollback(t *testing.T, w way, pool *pgxpool.Pool) {
	box := conformBox(t, pool, 1)
	x := w.begin(t, box)
	require.NoError(t, x.enqueue(Message{Key: "k"}))
	require.NoError(t, x.rollback())
	require.Empty(t, laneRows(t, box, 0))
}

func conformStatements(t *testing.T, w way, pool *pgxpool.Pool) {
	box := conformBox(t, pool, 4)
	x := w.begin(t, box)
	msgs := somewhere(1000)
	for i := range msgs {
		msgs[i].OrderingKey = fmt.Sprint("key ", i%50)
	}
	require.NoError(t, x.enqueue(msgs...))
	require.Equal(t, 4, x.statements())
	for i := range msgs {
		msgs[i] = Message{Key: "k", NotBefore: time.Now().Add(time.Hour), OrderingKey: fmt.Sprint(i)}
	}
	require.NoError(t, x.enqueue(msgs...))
	require.Equal(t, 5, x.statements(), "one for whatever is sent later")
	require.NoError(t, x.enqueue(somewhere(1000)...))
	require.Equal(t, 6, x.statements(), "messages without a key stay together")
	require.NoError(t, x.commit())

	lanes := map[string]int{}
	total := 0
	for lane := range 4 {
		rows := laneRows(t, box, lane)
		total += len(rows)
		for _, r := range rows {
			if r.orderingKey == nil {
				continue
			}
			if at, seen := lanes[*r.orderingKey]; seen {
				require.Equal(t, at, lane, "a key has one lane")
			}
			lanes[*r.orderingKey] = lane
		}
	}
	require.Equal(t, 2000, total)
	require.Equal(t, int64(1000), scan[int64](t, pool, "SELECT count(*) FROM "+box.tables.scheduled()))
	require.Len(t, lanes, 50)
}

func conformFault(t *testing.T, w way, pool *pgxpool.Pool) {
	box := conformBox(t, pool, 1)
	x := w.begin(t, box)
	for _, bad := range []Message{
		{}, {JSON: 1}, {Key: "a\x00b"}, {Key: "a\xffb"}, {Key: strings.Repeat("k", 256)}, {Key: "k", Publishing: amqp.Publishing{MessageId: "1"}},
		{Key: "k", Publishing: amqp.Publishing{Headers: amqp.Table{"a": []any{"\x00"}}}},
	} {
		err := x.enqueue(Message{Key: "k"}, bad, Message{Key: "k"})
		require.ErrorContains(t, err, "message 1: ")
		require.True(t, isPermanent(err))
	}
	require.Zero(t, x.statements())
	require.NoError(t, x.enqueue(Message{Key: "good"}), "the transaction is as it was")
	require.NoError(t, x.commit())
	rows := laneRows(t, box, 0)
	require.Len(t, rows, 1)
	require.Equal(t, "good", rows[0].key)
}

func conformLater(t *testing.T, w way, pool *pgxpool.Pool) {
	box := conformBox(t, pool, 4)
	at := time.Now().Add(time.Hour).Truncate(time.Microsecond).Add(1) // one nanosecond more than the database keeps
	x := w.begin(t, box)
	require.NoError(t, x.enqueue(Message{Key: "k", NotBefore: at, OrderingKey: "k"}, Message{Key: "k", NotBefore: time.Now().Add(-time.Hour), OrderingKey: "k"}))
	require.NoError(t, x.commit())
	lane := laneOf("k", 4)
	require.Len(t, laneRows(t, box, lane), 1, "what is past goes at once")
	stored := scan[time.Time](t, pool, "SELECT available_at FROM "+box.tables.scheduled())
	require.True(t, !stored.Before(at) && stored.Sub(at) < time.Microsecond, "%v is stored as %v", at, stored)
	require.Equal(t, lane, scan[int](t, pool, "SELECT lane FROM "+box.tables.scheduled()))
	require.NotZero(t, scan[int64](t, pool, "SELECT (properties->>'timestamp')::bigint FROM "+box.tables.scheduled()))
}

func conformNothing(t *testing.T, w way, pool *pgxpool.Pool) {
	box := conformBox(t, pool, 1)
	x := w.begin(t, box)
	require.NoError(t, x.enqueue())
	require.Zero(t, x.statements())
	require.NoError(t, x.rollback())
}

// TestPoolIsNoTx: what each statement is a transaction of its own on does not compile as one.
func TestPoolIsNoTx(t *testing.T) {
	for _, v := range []any{(*pgxpool.Pool)(nil), (*pgxpool.Conn)(nil), (*pgx.Conn)(nil), (*sql.DB)(nil), (*sql.Conn)(nil), (*sql.Tx)(nil)} {
		_, is := v.(Tx)
		require.False(t, is, "%T", v)
	}
	for _, v := range []any{(*pgxpool.Tx)(nil)} {
		_, is := v.(Tx)
		require.True(t, is, "%T", v)
	}
	type sqlTx interface {
		ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
		Commit() error
	}
	for v, want := range map[any]bool{(*sql.Tx)(nil): true, (*sql.DB)(nil): false, (*sql.Conn)(nil): false} {
		_, is := v.(sqlTx)
		require.Equal(t, want, is, "%T", v)
	}
}

// TestEnqueueOfLargeBodies: more than one statement may hold goes in several, in the same order.
func TestEnqueueOfLargeBodies(t *testing.T) {
	body := make([]byte, 40<<20)
	entries := make([]entry, 7)
	for i := range entries {
		entries[i] = entry{id: fmt.Sprint(i), body: body}
	}
	s := newStatements(tables{base: "outbox"}, 1)
	var sizes []int
	var ids []string
	for _, i := range s.inserts(entries) {
		sizes = append(sizes, i.rows)
		ids = append(ids, i.args[0].([]string)...)
	}
	require.Equal(t, []int{3, 3, 1}, sizes)
	require.Equal(t, []string{"0", "1", "2", "3", "4", "5", "6"}, ids)
	require.True(t, bytes.Equal(body, entries[6].body))
}

// TestEnqueueNoticesWhatWasNotStored: a rule or a trigger of somebody's must not lose messages silently.
func TestEnqueueNoticesWhatWasNotStored(t *testing.T) {
	t.Parallel()
	box := newBox(t, Config{})
	exec(t, box.pool, `CREATE FUNCTION drop_it() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)
	exec(t, box.pool, `CREATE TRIGGER t BEFORE INSERT ON outbox FOR EACH ROW WHEN (NEW.routing_key = 'b') EXECUTE FUNCTION drop_it()`)
	err := box.InTx(t.Context(), func(tx pgx.Tx) error {
		return box.Enqueue(t.Context(), tx, Message{Key: "a"}, Message{Key: "b"})
	})
	require.ErrorContains(t, err, "1 of 2")
	require.Empty(t, laneRows(t, box, 0))
}
