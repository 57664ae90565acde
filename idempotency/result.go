package idempotency

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// DoResult is Do for work that has a result: it is stored with the key, in the same transaction, and returned to whoever
// comes with the key again, without fn. fingerprint is what the work was asked for, such as a hash of the request; a key that
// comes with another fingerprint, or that Do or Claim has recorded, is ErrKeyReused. The result is kept as long as the key.
//
// A failure that would be the same each time is a result, for fn to put into its bytes. An error of fn rolls back, and the
// next call tries again; ErrDone is an error here. fn returning nil and fn returning empty bytes are not told apart later.
func (b *Inbox) DoResult(ctx context.Context, key string, fingerprint []byte,
	fn func(ctx context.Context, tx pgx.Tx) ([]byte, error)) ([]byte, error) {
	if err := b.able(fn != nil); err != nil {
		return nil, fmt.Errorf("idempotency: do result: %w", err)
	}
	stored, err := b.checked(key)
	if err != nil {
		return nil, b.metrics.ended(ctx, 1, 0, err)
	}
	n, err := 0, errPanicked
	defer func() { _ = b.metrics.ended(ctx, 1, n, err) }()
	for try := 1; ; try++ {
		var result []byte
		result, n, err = b.doResult(ctx, stored, fingerprint, fn)
		if !errors.Is(err, errGone) || try == attempts {
			return result, err
		}
	}
}

// errGone is of a key that was known, and had been removed when its result was to be read.
var errGone = errors.New("the key was removed just now")

func (b *Inbox) doResult(ctx context.Context, key string, fingerprint []byte,
	fn func(ctx context.Context, tx pgx.Tx) ([]byte, error)) (result []byte, fresh int, err error) {
	fingerprint = append([]byte{}, fingerprint...) // not nil, which would be no fingerprint
	fresh, err = b.claiming(ctx, []string{key}, func(ctx context.Context, tx pgx.Tx, _ []string) error {
		var err error
		if result, err = fn(ctx, tx); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, b.sql.keep, b.consumer, key, fingerprint, result)
		return err
	})
	switch {
	case err != nil:
		return nil, 0, err // not what fn returned: it was rolled back
	case fresh > 0:
		return result, fresh, nil
	}
	// A statement of its own, for that of the claim cannot see a row that it has waited for.
	result, err = b.kept(ctx, key, fingerprint)
	return result, 0, err
}

// kept returns the result stored with a key.
func (b *Inbox) kept(ctx context.Context, key string, fingerprint []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, openTime, fmt.Errorf("no answer within %v", openTime))
	defer cancel()
	var known, result []byte
	err := b.pool.QueryRow(ctx, b.sql.kept, b.consumer, key).Scan(&known, &result)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, later("result of %.*q: %w", shownKey, key, errGone)
	case err != nil:
		return nil, later("result of %.*q: %w", shownKey, key, err)
	case known == nil:
		return nil, fmt.Errorf("%w: %.*q: recorded without a result", ErrKeyReused, shownKey, key)
	case !bytes.Equal(known, fingerprint):
		return nil, fmt.Errorf("%w: %.*q: the request is another one", ErrKeyReused, shownKey, key)
	}
	return result, nil
}
