package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/idempotency"
)

// orders are objects whose state says what they have seen; bills are what handling them leaves.
func withOrders(d *db) {
	d.exec("CREATE TABLE orders (id text PRIMARY KEY, state text NOT NULL DEFAULT 'open', version int NOT NULL DEFAULT 0)")
	d.exec("CREATE TABLE bills (order_id text NOT NULL)")
	d.exec("INSERT INTO orders (id) VALUES ('o')")
}

// payLocked looks at the order under a lock.
func payLocked(ctx context.Context, tx pgx.Tx, d amqp.Delivery) error {
	var state string
	if err := tx.QueryRow(ctx, "SELECT state FROM orders WHERE id = $1 FOR UPDATE", d.Body).Scan(&state); err != nil {
		return err
	}
	if state != "open" {
		return idempotency.ErrDone
	}
	_, err := tx.Exec(ctx, "UPDATE orders SET state = 'paid' WHERE id = $1", d.Body)
	return errors.Join(err, bill(ctx, tx, d))
}

// payByVersion asks and writes in one statement; the message's type is the version it leads to.
func payByVersion(ctx context.Context, tx pgx.Tx, d amqp.Delivery) error {
	tag, err := tx.Exec(ctx, "UPDATE orders SET state = 'paid', version = $2 WHERE id = $1 AND version < $2", d.Body, d.Priority)
	if err != nil {
		return err
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("order %s: %w", d.Body, idempotency.ErrDone)
	}
	return bill(ctx, tx, d)
}

func bill(ctx context.Context, tx pgx.Tx, d amqp.Delivery) error {
	_, err := tx.Exec(ctx, "INSERT INTO bills VALUES ($1)", string(d.Body))
	return err
}

// P62 without a table: sixteen copies at once, the first of which fails.
func TestP62StateCheck(t *testing.T) {
	t.Parallel()
	for name, pay := range map[string]func(context.Context, pgx.Tx, amqp.Delivery) error{"locked": payLocked, "by version": payByVersion} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDB(t)
			withOrders(d)
			var calls atomic.Int32
			handle := idempotency.StateCheck(d.pool, func(ctx context.Context, tx pgx.Tx, del amqp.Delivery) error {
				err := pay(ctx, tx, del)
				if calls.Add(1) == 1 {
					return errWork
				}
				return err
			})
			msg := amqp.Delivery{Body: []byte("o"), Priority: 1}
			errs := all(16, func(int) error { return handle(t.Context(), msg) })
			failed := 0
			for _, err := range errs {
				if err != nil {
					require.ErrorIs(t, err, errWork)
					failed++
				}
			}
			require.LessOrEqual(t, failed, 1)
			require.NoError(t, handle(t.Context(), msg))
			require.Equal(t, 1, d.number("SELECT count(*) FROM bills"))
		})
	}
}

// A message that a newer one has overtaken has no effect.
func TestStateCheckPassesOverOldVersions(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	withOrders(d)
	handle := idempotency.StateCheck(d.pool, payByVersion)
	for _, version := range []uint8{3, 1, 2, 3, 4} {
		require.NoError(t, handle(t.Context(), amqp.Delivery{Body: []byte("o"), Priority: version}))
	}
	require.Equal(t, 2, d.number("SELECT count(*) FROM bills"))
	require.Equal(t, 4, d.number("SELECT version FROM orders"))
}

func TestStateCheckErrors(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	withOrders(d)
	handle := idempotency.StateCheck(d.pool, payLocked)
	require.ErrorIs(t, handle(t.Context(), amqp.Delivery{Body: []byte("unknown")}), pgx.ErrNoRows)
	d.pool.Close()
	err := handle(t.Context(), amqp.Delivery{Body: []byte("o")})
	require.True(t, notNow(err), "%v", err)
}
