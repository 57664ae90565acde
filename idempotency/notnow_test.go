package idempotency_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/idempotency"
	"github.com/warrenmq/warren/internal/codec"
	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/workqueue"
)

func TestNotNow(t *testing.T) {
	require.NoError(t, idempotency.NotNow(nil))
	for _, err := range []error{
		errWork, &pgconn.PgError{Code: "23505"}, pgx.ErrNoRows, sql.ErrNoRows, sql.ErrTxDone, pgx.ErrTxCommitRollback,
		codec.Permanent(&pgconn.PgError{Code: "40001"}), context.Canceled,
	} {
		require.Equal(t, err, idempotency.NotNow(err))
		require.False(t, notNow(idempotency.NotNow(err)), "%v", err)
	}
	require.True(t, notNow(idempotency.NotNow(context.DeadlineExceeded)), "all that a frozen database says")
	for _, code := range []string{"40001", "40P01", "55P03", "57P01", "08006"} {
		err := fmt.Errorf("book: %w", &pgconn.PgError{Code: code})
		require.True(t, notNow(idempotency.NotNow(err)), code)
		require.ErrorIs(t, idempotency.NotNow(err), err)
	}
}

// A handler with transactions of its own, of either driver, whose sessions are killed under load: no message is dead-lettered,
// and the balance is exact.
func TestClaimUnderLoad(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"pgx", "database/sql"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, q := newDB(t), newQueue(t, testenv.Shared(t))
			inbox := d.inbox("billing", idempotency.Config{})
			base, err := sql.Open("pgx", withApplicationName(t, d))
			require.NoError(t, err)
			defer base.Close()
			ofPgx := func(ctx context.Context, del amqp.Delivery) error {
				return pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
					fresh, err := inbox.Claim(ctx, tx, del.MessageId)
					if err != nil || !fresh {
						return err
					}
					return add(ctx, tx, string(del.Body))
				})
			}
			ofSQL := func(ctx context.Context, del amqp.Delivery) error {
				tx, err := base.BeginTx(ctx, nil)
				if err != nil {
					return err
				}
				defer tx.Rollback()
				fresh, err := inbox.Claim(ctx, idempotency.SQL(tx), del.MessageId)
				if err != nil || !fresh {
					return err
				}
				if _, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance + 1 WHERE id = $1", string(del.Body)); err != nil {
					return err
				}
				return tx.Commit()
			}
			handle := ofPgx
			if name == "database/sql" {
				handle = ofSQL
			}
			l := newLoad(t, q)
			q.work(func(ctx context.Context, del amqp.Delivery) error {
				err := idempotency.NotNow(handle(ctx, del))
				if err == nil {
					l.handled.Add(1)
				}
				return err
			}, workqueue.WorkerConfig{Concurrency: 8})
			for range 3 {
				l.more(30)
				testenv.TerminateSessions(t, d.url, d.name)
			}
			l.stop()
			l.verify(d)
		})
	}
}

// Errors of either driver when its session was ended are all "not now".
func TestNotNowOfBrokenConnections(t *testing.T) {
	t.Parallel()
	for _, driver := range drivers {
		t.Run(driver.name, func(t *testing.T) {
			d := newDB(t)
			tx := driver.begin(t, d, sql.LevelDefault)
			testenv.TerminateBackends(t, d.url, tx.pid())
			_, err := tx.Exec(t.Context(), "SELECT 1")
			require.True(t, notNow(idempotency.NotNow(err)), "statement: %v", err)
			tx = driver.begin(t, d, sql.LevelDefault)
			testenv.TerminateBackends(t, d.url, tx.pid())
			err = tx.Commit(t.Context())
			require.True(t, notNow(idempotency.NotNow(err)), "commit: %v", err)
		})
	}
	nobody, err := sql.Open("pgx", "postgres://nobody@127.0.0.1:1/none")
	require.NoError(t, err)
	defer nobody.Close()
	_, err = nobody.BeginTx(t.Context(), nil)
	require.True(t, notNow(idempotency.NotNow(err)), "begin: %v", err)
}

// withApplicationName is the address of the database for sessions that are found by the name of the pool's.
func withApplicationName(t *testing.T, d *db) string {
	u, err := url.Parse(d.url)
	require.NoError(t, err)
	query := u.Query()
	query.Set("application_name", d.name)
	u.RawQuery = query.Encode()
	return u.String()
}
