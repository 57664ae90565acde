package idempotency

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/warrenmq/warren/internal/pg"
)

// Tx is a transaction to claim a key in. A pgx.Tx is one; a pool or a connection, on which the claim would be committed
// before the work is done, is none for want of Commit. Commit is never called.
type Tx interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Commit(ctx context.Context) error
}

// SQL makes a Tx of a *sql.Tx that was begun on the driver of pgx/v5/stdlib. A *sql.DB is refused by the compiler.
func SQL(tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	Commit() error
}) Tx {
	return pg.SQL(tx)
}

// statements are those of an inbox.
type statements struct {
	claim     string // consumer, keys, lock timeout: a row for each key that was not known
	keep      string // consumer, key, fingerprint, result
	kept      string // consumer, key: fingerprint, result
	addCursor string // consumer
	cursor    string // consumer, table: block, blocks of the table
	remove    string // consumer, first and last block, retention
	advance   string // consumer, block, time until it is due
}

// claimSQL inserts keys, and waits for each that another transaction has inserted until that one ends, but not longer than
// lock_timeout, which is as before when the statement has ended. The steps depend on one another in this order, and all of
// them are made, whether or not anybody reads what they give.
//
// ON CONFLICT leaves the transaction whole when the key is known. The error of a wait that took too long, or of a collision
// at the higher isolation levels, does not.
const claimSQL = `WITH before AS MATERIALIZED (SELECT current_setting('lock_timeout') AS value),
bound AS MATERIALIZED (SELECT value, set_config('lock_timeout', $3::text, true) FROM before),
claim AS (
	INSERT INTO %[1]s (consumer, key) SELECT $1::text, k::%[2]s FROM bound, unnest($2::text[]) AS k
	ON CONFLICT (consumer, key) DO NOTHING RETURNING key
),
claimed AS MATERIALIZED (SELECT array_agg(key::text) AS keys FROM claim),
after AS MATERIALIZED (SELECT keys, set_config('lock_timeout', value, true) FROM claimed, bound)
SELECT unnest(keys) FROM after`

func newStatements(cfg Config) statements {
	keys, sweep, kind := cfg.keys(), cfg.sweep(), "text"
	if cfg.UUIDKeys {
		kind = "uuid"
	}
	ofKey := fmt.Sprintf("WHERE consumer = $1 AND key = $2::text::%s", kind)
	return statements{
		claim:     fmt.Sprintf(claimSQL, keys, kind),
		keep:      fmt.Sprintf("UPDATE %s SET fingerprint = $3, result = $4 %s", keys, ofKey),
		kept:      fmt.Sprintf("SELECT fingerprint, result FROM %s %s", keys, ofKey),
		addCursor: fmt.Sprintf("INSERT INTO %s (consumer) VALUES ($1) ON CONFLICT DO NOTHING", sweep),
		cursor: fmt.Sprintf("SELECT block, pg_relation_size($2::text::regclass) / current_setting('block_size')::bigint"+
			" FROM %s WHERE consumer = $1 AND due_at <= now() FOR UPDATE SKIP LOCKED", sweep),
		remove: fmt.Sprintf("DELETE FROM %[1]s WHERE ctid = ANY (ARRAY (SELECT ctid FROM %[1]s"+
			" WHERE ctid >= $2::text::tid AND ctid < $3::text::tid AND consumer = $1 AND done_at < now() - $4::interval"+
			" FOR UPDATE SKIP LOCKED))", keys),
		advance: fmt.Sprintf("UPDATE %s SET block = $2, due_at = now() + $3::interval WHERE consumer = $1", sweep),
	}
}

func (b *Inbox) lockTimeout() string {
	return strconv.FormatInt(b.cfg.LockTimeout.Milliseconds(), 10) + "ms"
}

// Claim records key in a transaction of the caller's own and reports whether it was new. Call it first in the transaction,
// do the work in the same one if fresh, and commit; when fresh is false the work is done, by a transaction that was
// committed: end this one and succeed. It takes one round trip, on pgx and on database/sql.
//
// It waits for a transaction in progress with the same key up to LockTimeout. An error of the database says NotNow, for it
// is never about the key: ErrBusy; 40001 or 40P01, to which the answer is the whole transaction again; or that the database
// is away. The transaction can then only be rolled back. One that has failed before, or is over, is a mistake, which does not
// say NotNow. ErrNoKey comes before any SQL and leaves it whole.
//
// Acknowledge only after Commit has returned nil: after any other answer but an error of the server the key may be known or
// not, and the next delivery tells. NotNow marks the errors of the transaction for a consumer.
func (b *Inbox) Claim(ctx context.Context, tx Tx, key string) (fresh bool, err error) {
	stored, err := b.checked(key)
	if err != nil {
		return false, err
	}
	tag, err := tx.Exec(ctx, b.sql.claim, b.consumer, []string{stored}, b.lockTimeout())
	switch {
	case err == nil:
	case pg.Code(err) == pg.FailedTransaction, errors.Is(err, pgx.ErrTxClosed), errors.Is(err, sql.ErrTxDone):
		return false, fmt.Errorf("idempotency: claim %.*q: %w", shownKey, key, err) // whenever it is tried
	default:
		return false, b.claimError(err, key)
	}
	fresh = tag.RowsAffected() > 0
	b.metrics.claimed(ctx, fresh)
	return fresh, nil
}

func isBusy(err error) bool { return pg.Code(err) == pg.LockNotAvailable }
