package pg

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// SQLTx is a *sql.Tx. A *sql.DB, on which each statement would be a transaction of its own, is none for want of Commit.
type SQLTx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	Commit() error
}

// Tx is an SQLTx with the methods of a pgx.Tx. Errors of the server stay *pgconn.PgError, if the driver is pgx's.
type Tx struct{ tx SQLTx }

// SQL returns tx as a Tx. Nil stays nil inside of it: the first statement panics, as it would on tx.
func SQL(tx SQLTx) *Tx { return &Tx{tx} }

// Exec runs a statement. The rows affected are those of its command tag, also for a SELECT.
func (t *Tx) Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	result, err := t.tx.ExecContext(ctx, query, args...)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	n, err := result.RowsAffected()
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	return pgconn.NewCommandTag(fmt.Sprintf("SELECT %d", n)), nil
}

// Commit commits. A *sql.Tx has no context for it but the one it was begun with.
func (t *Tx) Commit(context.Context) error { return t.tx.Commit() }
