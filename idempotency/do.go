package idempotency

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// Do calls fn in a transaction in which key is recorded, and commits: unless key is known, then it does not call fn and
// fresh is false. The record and what fn writes through tx appear together or not at all. nil means committed, by this call
// or, when fresh is false, before.
//
// It takes one round trip more than fn does for BEGIN and the claim together, and one for COMMIT. A copy of the call that
// comes while this one runs waits for it, up to LockTimeout, and then returns ErrBusy.
//
// An error or a panic of fn rolls back, and the key stays unknown; the error is returned as it is. fn is called again, up to
// three times in all, in a new transaction, when the one before collided with others (40001, 40P01, 55P03), or was lost with
// its connection, or when its error was a statement's that fn did not return. What does not pass then says NotNow, as does
// a database that cannot be reached or does not answer within 30 s; only a statement's error that is swallowed each time is
// an error as any other. So is an end of ctx, or of a context of fn's own, if the database answers. Whether it was committed when the answer to COMMIT got lost is found out by the next attempt, in
// this call or in the next one with the same key, never assumed: fresh may then be false though fn's effect is this call's.
//
// tx is lent: Commit and Rollback return an error and have Do fail, as do COMMIT and ROLLBACK as statements and rows that are
// left open; tx.Begin makes savepoints. COMMIT goes its way even when
// ctx has ended meanwhile, for up to 10 s, since the work is done. fn's ctx is ctx.
func (b *Inbox) Do(ctx context.Context, key string, fn func(ctx context.Context, tx pgx.Tx) error) (fresh bool, err error) {
	if err := b.able(fn != nil); err != nil {
		return false, fmt.Errorf("idempotency: do: %w", err)
	}
	stored, err := b.checked(key)
	if err != nil {
		return false, b.metrics.ended(ctx, 1, 0, err)
	}
	return b.do(ctx, stored, fn)
}

// do is Do for a key that was checked.
func (b *Inbox) do(ctx context.Context, key string, fn func(ctx context.Context, tx pgx.Tx) error) (fresh bool, err error) {
	n, err := 0, errPanicked
	defer func() { _ = b.metrics.ended(ctx, 1, n, err) }()
	n, err = b.claiming(ctx, []string{key}, func(ctx context.Context, tx pgx.Tx, _ []string) error { return fn(ctx, tx) })
	if isDone(err) {
		err = nil
	}
	return n > 0, err
}

// DoBatch is Do for many keys in one transaction: fn gets the indexes of those that are new, in ascending order. Of a key
// that is there more than once only the first can be new. When none is new, fn is not called. It succeeds or fails as a
// whole, so ErrDone is an error here; an unusable key is ErrNoKey, with its index, before any SQL. Keys are claimed in an order of their own, so that two
// batches with the same ones do not deadlock.
func (b *Inbox) DoBatch(ctx context.Context, keys []string, fn func(ctx context.Context, tx pgx.Tx, fresh []int) error) error {
	if err := b.able(fn != nil); err != nil {
		return fmt.Errorf("idempotency: do batch: %w", err)
	}
	stored := make([]string, len(keys))
	for i, key := range keys {
		var err error
		if stored[i], err = b.checked(key); err != nil {
			return b.metrics.ended(ctx, len(keys), 0, fmt.Errorf("key %d: %w", i, err))
		}
	}
	n, err := 0, errPanicked
	defer func() { _ = b.metrics.ended(ctx, len(keys), n, err) }()
	n, err = b.doBatch(ctx, stored, fn)
	return err
}

// doBatch is DoBatch for keys that were checked, and returns how many were new.
func (b *Inbox) doBatch(ctx context.Context, keys []string, fn func(ctx context.Context, tx pgx.Tx, fresh []int) error) (int, error) {
	if len(keys) == 0 {
		return 0, nil
	}
	first := make(map[string]int, len(keys))
	for i, key := range keys {
		if _, twice := first[key]; !twice {
			first[key] = i
		}
	}
	distinct := make([]string, 0, len(first))
	for key := range first {
		distinct = append(distinct, key)
	}
	slices.Sort(distinct)
	return b.claiming(ctx, distinct, func(ctx context.Context, tx pgx.Tx, claimed []string) error {
		fresh := make([]int, len(claimed))
		for i, key := range claimed {
			fresh[i] = first[key]
		}
		slices.Sort(fresh)
		return fn(ctx, tx, fresh)
	})
}

// claiming runs fn in a transaction that has claimed those of keys which are new, unless none is, and returns how many.
func (b *Inbox) claiming(ctx context.Context, keys []string,
	fn func(ctx context.Context, tx pgx.Tx, claimed []string) error) (fresh int, err error) {
	var claimed []string // of the attempt at hand
	err = b.runner.run(ctx, job{
		open: func(batch *pgx.Batch) {
			batch.Queue(b.sql.claim, b.consumer, keys, b.lockTimeout()).Query(func(rows pgx.Rows) (err error) {
				claimed, err = pgx.AppendRows(claimed[:0], rows, pgx.RowTo[string])
				return err
			})
		},
		opened: func(err error) error { return b.claimError(err, keys...) },
		body: func(ctx context.Context, tx pgx.Tx) error {
			if len(claimed) == 0 {
				return errKnown
			}
			return fn(ctx, tx, claimed)
		},
	})
	switch err {
	case nil:
		return len(claimed), nil
	case errKnown:
		return 0, nil
	}
	return 0, err
}

// able says what is missing for a transaction.
func (b *Inbox) able(hasFn bool) error {
	switch {
	case b.pool == nil:
		return errNoPool
	case !hasFn:
		return errNoFunc
	}
	return nil
}

// claimError is of a claim: a "not now" whatever it is, for it is never about the keys.
func (b *Inbox) claimError(err error, keys ...string) error {
	what := "claim"
	if len(keys) > 0 {
		what = fmt.Sprintf("claim %.*q", shownKey, keys[0])
	}
	if len(keys) > 1 {
		what += fmt.Sprintf(" and %d others", len(keys)-1)
	}
	if isBusy(err) {
		return later("%s: %w: waited for %v: %w", what, ErrBusy, b.cfg.LockTimeout, err)
	}
	return later("%s: %w", what, err)
}
