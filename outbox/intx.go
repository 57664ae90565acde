package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// commitTime is how long a commit, or a rollback, may go on after the caller's ctx has ended: cut off in the middle, nobody
// would know how it went.
const commitTime = 5 * time.Second

// InTx runs fn in a transaction of the pool, commits it and wakes the relay. When fn returns an error or panics, or ctx has
// ended, the transaction is rolled back and fn's error returned, or the panic goes on. fn must neither commit nor roll back.
//
// A commit is not cut off by ctx; it may go on for 5 s after it. When it fails with an error that is not the server's
// (*pgconn.PgError, pgx.ErrTxCommitRollback), the connection was lost and the transaction may have been committed all the same.
func (o *Outbox) InTx(ctx context.Context, fn func(tx pgx.Tx) error) error {
	if fn == nil {
		return errors.New("outbox: transaction: fn: nil")
	}
	var failed error // fn's own error, which goes back as it is
	err := o.inTx(ctx, func(tx pgx.Tx) error {
		failed = fn(tx)
		return failed
	})
	if err != nil && failed == nil {
		return fmt.Errorf("outbox: transaction: %w", err)
	}
	return err
}

// inTx is InTx for the package's own functions.
func (o *Outbox) inTx(ctx context.Context, fn func(tx pgx.Tx) error) error {
	if o.pool == nil {
		return errNoPool
	}
	tx, err := o.pool.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	ended := false
	defer func() {
		if !ended { // fn failed, or panics
			ctx, cancel := afterwards(ctx)
			defer cancel()
			_ = tx.Rollback(ctx) // a connection that cannot even do that is closed, which does it
		}
	}()
	if err := fn(tx); err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("not committed: %w", err)
	}
	ended = true
	return o.commit(ctx, tx)
}

func (o *Outbox) commit(ctx context.Context, tx pgx.Tx) error {
	ctx, cancel := afterwards(ctx)
	defer cancel()
	err := tx.Commit(ctx)
	o.Wake() // also when nobody knows whether it was committed
	if err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// afterwards returns a context for the end of a transaction: it lives as long as ctx, and commitTime longer.
func afterwards(ctx context.Context) (context.Context, context.CancelFunc) {
	after, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(commitTime, cancel)
		context.AfterFunc(after, func() { timer.Stop() })
	})
	return after, func() {
		stop()
		cancel()
	}
}
