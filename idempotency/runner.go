package idempotency

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/warrenmq/warren/internal/backoff"
	"github.com/warrenmq/warren/internal/pg"
)

const (
	attempts = 3 // of a transaction, when it collides or its connection breaks

	// openTime bounds the wait for a connection, BEGIN and the claim, beside LockTimeout: then the database is taken for
	// away. endTime bounds COMMIT and ROLLBACK, which do not end with the caller's context. probeTime is for the question
	// whether anybody is there.
	openTime  = 30 * time.Second
	endTime   = 10 * time.Second
	probeTime = 2 * time.Second
)

// runner runs transactions.
type runner struct {
	pool     *pgxpool.Pool
	options  pgx.TxOptions
	openTime time.Duration
}

// job is what is done in a transaction.
type job struct {
	// open adds statements to the round trip of BEGIN; may be nil. opened makes an error of theirs the caller's.
	open   func(b *pgx.Batch)
	opened func(err error) error
	// body does the work. It is called once in each attempt, with a transaction that it cannot end.
	body func(ctx context.Context, tx pgx.Tx) error
}

// run runs j in a transaction and commits it. It does so whole again, up to attempts times, when it collided with others or
// its connection broke, and even when it is open whether it was committed: then the claim of the next attempt waits for
// the session in doubt, and finds out. What is left is a "not now". An error of the body rolls back and is returned as it
// is; a panic rolls back and goes on.
func (r *runner) run(ctx context.Context, j job) error {
	var err error
	for n := 1; ; n++ {
		var again bool
		if again, err = r.attempt(ctx, j); !again {
			return err
		}
		if n == attempts || backoff.Sleep(ctx, pause(n)) != nil {
			break
		}
	}
	switch {
	case errors.Is(err, errSwallowed):
		return fmt.Errorf("idempotency: %w", err) // each time: it is the work's
	case isNotNow(err), pg.Code(err) == pg.FailedTransaction:
		return err
	}
	return later("%w", err)
}

// pause keeps transactions that collided from meeting again at once.
func pause(n int) time.Duration {
	return time.Duration(n) * (5*time.Millisecond + rand.N(20*time.Millisecond))
}

// attempt runs j once. again says that err is not about j.
func (r *runner) attempt(ctx context.Context, j job) (again bool, err error) {
	tx, again, err := r.begin(ctx, j)
	if err != nil {
		return again, err
	}
	lent := &lentTx{Tx: tx}
	ended := false
	defer func() {
		if !ended { // the body panicked, or ended its goroutine
			r.rollback(ctx, tx)
		}
	}()
	if err = j.body(ctx, lent); err == nil {
		err = lent.fault(ctx)
	}
	ended = true
	if err != nil {
		broken := tx.Conn().IsClosed()
		r.rollback(ctx, tx) // first, so that there is a connection to ask by
		return r.judge(ctx, err, broken)
	}
	return r.commit(ctx, tx)
}

// begin opens a transaction. Its errors say NotNow: none of them is about the work.
func (r *runner) begin(ctx context.Context, j job) (_ pgx.Tx, again bool, err error) {
	opening, cancel := context.WithTimeoutCause(ctx, r.openTime, fmt.Errorf("no answer within %v", r.openTime))
	defer cancel()
	b := &pgx.Batch{}
	b.BeginTx(r.options)
	if j.open != nil {
		j.open(b)
	}
	results := r.pool.SendBatch(opening, b)
	if err = results.Close(); err == nil {
		return results.Tx(), false, nil
	}
	r.rollback(ctx, results.Tx())
	if opening.Err() != nil {
		err = fmt.Errorf("%w (%w)", err, context.Cause(opening))
	}
	if j.opened != nil {
		err = j.opened(err)
	} else {
		err = later("begin: %w", err)
	}
	// A connection that the pool kept may have been dead for long, another one need not be.
	again = opening.Err() == nil && !errors.Is(err, ErrBusy) && (pg.Code(err) == "" || pg.Collided(err) || pg.Away(err))
	return nil, again, err
}

// judge says what an error of the body is about: the others that ran at the same time, the database, or the work. broken
// says that the connection is lost.
func (r *runner) judge(ctx context.Context, err error, broken bool) (again bool, _ error) {
	switch {
	case err == errKnown, isDone(err), errors.Is(err, ErrBusy), isPermanent(err):
		return false, err
	case pg.Collided(err), pg.Code(err) == pg.FailedTransaction: // which hides the error before it
		return true, err
	case isNotNow(err):
		return false, err
	}
	// pgx closes the connection of a statement that is given up, so a broken one says nothing then.
	why := ctx.Err()
	if why == nil && broken && !pg.Away(err) {
		why = givenUp(err)
	}
	switch {
	case why == nil:
		return broken || pg.Away(err), err
	case broken && errors.Is(why, context.DeadlineExceeded) && !r.answers(ctx):
		return false, later("%w, and the database does not answer", err) // the time was not the work's to keep
	}
	return false, err
}

// givenUp returns the error of a context of the work's own in the chain of err, nil when there is none.
func givenUp(err error) error {
	for _, end := range []error{context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, end) {
			return end
		}
	}
	return nil
}

// answers reports whether the database does.
func (r *runner) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTime)
	defer cancel()
	return r.pool.Ping(ctx) == nil
}

// commit commits, whatever has become of ctx: the work is done. Only an error of the server that leaves the session alive
// says that nothing was committed.
func (r *runner) commit(ctx context.Context, tx pgx.Tx) (again bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	err = tx.Commit(ctx)
	switch {
	case err == nil:
		return false, nil
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return true, fmt.Errorf("%w: %w", errSwallowed, err)
	case pg.Collided(err):
		return true, err
	case pg.Code(err) != "" && !pg.Away(err):
		return false, fmt.Errorf("idempotency: commit: %w", err) // a deferred constraint
	}
	return true, fmt.Errorf("%w: %w", errUnknown, err)
}

// rollback gives the connection back to the pool, or closes it when it does not answer.
func (r *runner) rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	_ = tx.Rollback(ctx) // nothing was promised
}

// lentTx is a transaction that whoever has it cannot end. Transactions begun inside it are savepoints, and can be ended.
type lentTx struct {
	pgx.Tx
	touched bool
}

// fault says why the transaction cannot be committed as it was given back, nil when it can.
func (t *lentTx) fault(ctx context.Context) error {
	conn := t.Conn().PgConn()
	switch {
	case conn.IsClosed() && ctx.Err() != nil:
		return fmt.Errorf("%w: %w", errLost, ctx.Err())
	case conn.IsClosed():
		return errLost
	case conn.IsBusy():
		return errUnread
	case t.touched, conn.TxStatus() == idle: // by a method, or in SQL
		return errNotYours
	}
	return nil
}

// idle is the TxStatus of a session outside of any transaction.
const idle = 'I'

func (t *lentTx) Commit(context.Context) error {
	t.touched = true
	return errNotYours
}

func (t *lentTx) Rollback(context.Context) error {
	t.touched = true
	return errNotYours
}
