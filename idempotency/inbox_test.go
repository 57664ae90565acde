package idempotency_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/idempotency"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

func TestNewReportsEveryFaultAtOnce(t *testing.T) {
	_, err := idempotency.New(nil, "", idempotency.Config{
		Schema: "a\x00b", Table: strings.Repeat("t", 60), Retention: time.Millisecond, LockTimeout: time.Microsecond,
		IsoLevel: "whatever",
	})
	for _, fault := range []string{
		"consumer: empty", "Schema: holds a NUL", "Table: 60 bytes, at most 56", "Retention: 1ms, must be at least 1s",
		"LockTimeout: 1µs, must be 1 ms to 24 days", `IsoLevel: "whatever" is none`,
	} {
		require.ErrorContains(t, err, fault)
	}
	for name, consumer := range map[string]string{"too long": strings.Repeat("c", 256), "NUL": "a\x00", "UTF-8": "\xff"} {
		_, err := idempotency.New(nil, consumer, idempotency.Config{})
		require.ErrorContains(t, err, "consumer: ", name)
	}
	for _, cfg := range []idempotency.Config{
		{}, {Retention: -1, LockTimeout: -1}, {Retention: time.Second, LockTimeout: time.Millisecond, IsoLevel: pgx.Serializable},
	} {
		_, err := idempotency.New(nil, "billing", cfg)
		require.NoError(t, err)
	}
}

// An Inbox without a pool claims, and says of everything else that it cannot.
func TestWithoutAPool(t *testing.T) {
	inbox, err := idempotency.New(nil, "billing", idempotency.Config{})
	require.NoError(t, err)
	ctx := t.Context()
	_, err = inbox.Do(ctx, "k", addA)
	require.ErrorContains(t, err, "pool: nil")
	require.ErrorContains(t, inbox.DoBatch(ctx, []string{"k"}, func(context.Context, pgx.Tx, []int) error { return nil }), "pool: nil")
	_, err = inbox.DoResult(ctx, "k", nil, func(context.Context, pgx.Tx) ([]byte, error) { return nil, nil })
	require.ErrorContains(t, err, "pool: nil")
	require.ErrorContains(t, inbox.Run(ctx), "pool: nil")
	require.ErrorContains(t, inbox.Migrate(ctx), "pool: nil")

	// A handler of it would dead-letter every message: there is none, which the constructors say.
	require.Nil(t, inbox.Handle(func(context.Context, pgx.Tx, amqp.Delivery) error { return nil }))
	require.Nil(t, inbox.HandleBatch(func(context.Context, pgx.Tx, []amqp.Delivery) error { return nil }))
	require.Nil(t, idempotency.StateCheck(nil, func(context.Context, pgx.Tx, amqp.Delivery) error { return nil }))
}

func TestNilFunctions(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none") // connects to nothing
	require.NoError(t, err)
	defer pool.Close()
	inbox, err := idempotency.New(pool, "billing", idempotency.Config{})
	require.NoError(t, err)
	_, err = inbox.Do(t.Context(), "k", nil)
	require.ErrorContains(t, err, "fn: nil")
	require.ErrorContains(t, inbox.DoBatch(t.Context(), []string{"k"}, nil), "fn: nil")
	_, err = inbox.DoResult(t.Context(), "k", nil, nil)
	require.ErrorContains(t, err, "fn: nil")
	require.Nil(t, inbox.Handle(nil))
	require.Nil(t, inbox.HandleBatch(nil))
	require.Nil(t, idempotency.StateCheck(pool, nil))
	conn, err := reconnect.Dial(t.Context(), "amqp://127.0.0.1:1/", reconnect.Config{Lazy: true, Logger: quiet})
	require.NoError(t, err)
	defer conn.Close(context.Background())
	_, err = workqueue.NewWorker(conn, workqueue.Queue{Name: "q"}, inbox.Handle(nil), workqueue.WorkerConfig{})
	require.ErrorContains(t, err, "Handler: missing")
}

// A pool that has no connection left, in the time that the message has.
func TestPoolExhausted(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	d.inbox("billing", idempotency.Config{})
	pool := d.open(d.url, 1)
	taken, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer taken.Release()
	inbox, err := idempotency.New(pool, "billing", idempotency.Config{})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = inbox.Do(ctx, "k", addA)
	require.True(t, notNow(err), "%v", err)
	taken.Release()
	fresh, err := inbox.Do(t.Context(), "k", addA)
	require.NoError(t, err)
	require.True(t, fresh)
}

// A nil pool, and one that connects to nothing: the message is not at fault.
func TestNobodyThere(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none")
	require.NoError(t, err)
	defer pool.Close()
	inbox, err := idempotency.New(pool, "billing", idempotency.Config{})
	require.NoError(t, err)
	began := time.Now()
	_, err = inbox.Do(t.Context(), "k", addA)
	require.True(t, notNow(err), "%v", err)
	require.False(t, permanent(err))
	took(t, began, time.Second, "finding out that nobody is there")
	pool.Close()
	_, err = inbox.Do(t.Context(), "k", addA)
	require.True(t, notNow(err), "a closed pool: %v", err)
}
