package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/warrenmq/warren/internal/pg"
)

// Tx is a transaction to enqueue in. A pgx.Tx and a *pgxpool.Tx are one. A pool and a connection are none, for want of
// Commit, so that enqueueing outside a transaction does not compile.
type Tx interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Commit(ctx context.Context) error
}

// SQL returns a transaction of database/sql as a Tx: a *sql.Tx on pgx's stdlib driver. A *sql.DB does not compile.
func SQL(tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	Commit() error
}) Tx {
	return pg.SQL(tx)
}

// Enqueue stores messages within tx: they are sent when it has been committed, and never when it has not. Call Wake after
// the commit, or use InTx, to have them sent at once; a relay finds them within its PollInterval anyway.
//
// All messages are checked before any SQL: when one has a fault none is stored, tx is as it was, and the error, which is
// permanent, names each faulty message by its index and field. Besides the limits of the wire (package wire's: names and
// properties of 255 bytes, headers of 64 KiB, MaxBody) that is text which PostgreSQL cannot store: NUL and invalid UTF-8,
// except in bodies and in headers of type []byte; and neither Exchange nor Key. Kinds of headers are kept exactly, but for
// fractions of seconds.
//
// It takes one statement for each lane that messages go to, however many they are, one for all those with NotBefore, and
// more only when bodies and headers together exceed 128 MiB. An error of the database leaves tx aborted, as any error does. The trace
// that ctx belongs to goes on in the headers of messages that carry none yet.
//
// To keep the order of a key, enqueue after the statement that locks what the key stands for, such as the update of its
// row. Enqueueing takes no lock that others wait for.
func (o *Outbox) Enqueue(ctx context.Context, tx Tx, msgs ...Message) error {
	if tx == nil {
		return errors.New("outbox: enqueue: tx: nil")
	}
	entries, err := o.entries(msgs, o.traceOf(ctx))
	if err != nil {
		return fmt.Errorf("outbox: enqueue: %w", err)
	}
	for _, i := range o.insert.inserts(entries) {
		tag, err := tx.Exec(ctx, i.sql, i.args...)
		if err != nil {
			return fmt.Errorf("outbox: enqueue: %w", err)
		}
		if tag.RowsAffected() != int64(i.rows) { // a trigger or a rule of somebody's
			return fmt.Errorf("outbox: enqueue: %d of %d messages were stored; roll back", tag.RowsAffected(), i.rows)
		}
	}
	return nil
}

// EnqueueBatch is Enqueue as part of b, which is to be sent in a transaction: tx.SendBatch(ctx, b), or any pool's, as a
// batch is a transaction of its own then. It does no I/O. It checks as Enqueue does, and adds nothing to b when a message
// has a fault. Errors of the database come from reading b's results. Having no context, it stores no trace.
func (o *Outbox) EnqueueBatch(b *pgx.Batch, msgs ...Message) error {
	if b == nil {
		return errors.New("outbox: enqueue: batch: nil")
	}
	entries, err := o.entries(msgs, nil)
	if err != nil {
		return fmt.Errorf("outbox: enqueue: %w", err)
	}
	for _, i := range o.insert.inserts(entries) {
		b.Queue(i.sql, i.args...)
	}
	return nil
}
