package idempotency

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/warrenmq/warren/internal/backoff"
)

const (
	// sweepBlocks is how much of the table one step looks at: 512 KiB, or about 6,000 keys.
	sweepBlocks = 64
	sweepPause  = 50 * time.Millisecond // after a step, for others
	sweepLimit  = 30 * time.Second      // of a step
	sweepPart   = 24                    // of the retention, after which a sweep begins anew
	maxPeriod   = 6 * time.Hour
	minPeriod   = 250 * time.Millisecond
	maxIdle     = time.Minute // between two looks whether there is something to do
)

// Run removes this consumer's keys that are older than Retention until ctx ends; then it returns nil. Any number of
// instances may run it, they share the work; with none of them the table grows and nothing else is wrong.
//
// It goes through the table every 24th part of the Retention, but at least every 6 hours, in steps of 64 blocks with a pause
// between them, each a short transaction that waits for nobody. Nothing waits for it but the claim of a key that is being
// removed at that moment, for as long as the step takes. A key goes some time after its Retention, never before; the
// database's clock counts. An error of the database is logged once, and Run tries again with pauses up to a minute. With a
// Retention of -1 it only waits.
func (b *Inbox) Run(ctx context.Context) error {
	if b.pool == nil {
		return fmt.Errorf("idempotency: run: %w", errNoPool)
	}
	if b.cfg.Retention == forever {
		<-ctx.Done()
		return nil
	}
	retry := backoff.NewCounter(backoff.Policy{Min: time.Second, Max: maxIdle})
	retry.Next()
	failing := false
	for ctx.Err() == nil {
		more, err := b.sweep(ctx)
		pause := b.idle()
		switch {
		case ctx.Err() != nil:
		case err != nil:
			if !failing {
				b.cfg.Logger.Warn("idempotency: old keys are not removed at present", "consumer", b.consumer, "error", err)
			}
			failing, pause = true, retry.Next()
		default:
			if failing {
				b.cfg.Logger.Info("idempotency: old keys are removed again", "consumer", b.consumer)
			}
			failing = false
			retry.Reset()
			retry.Next()
			if more {
				pause = sweepPause
			}
		}
		_ = backoff.Sleep(ctx, pause) // its error is ctx's
	}
	return nil
}

// period is the time between two sweeps.
func (b *Inbox) period() time.Duration {
	return min(max(b.cfg.Retention/sweepPart, minPeriod), maxPeriod)
}

func (b *Inbox) idle() time.Duration { return min(b.period(), maxIdle) }

// sweep does a step of the sweep, unless none is due or another instance is at it. more says that the next one is due.
func (b *Inbox) sweep(ctx context.Context) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, sweepLimit)
	defer cancel()
	removed := int64(0)
	options := pgx.TxOptions{IsoLevel: pgx.ReadCommitted}
	err = pgx.BeginTxFunc(ctx, b.pool, options, func(tx pgx.Tx) error {
		var block, blocks int64
		err := tx.QueryRow(ctx, b.sql.cursor, b.consumer, b.cfg.keys()).Scan(&block, &blocks)
		if errors.Is(err, pgx.ErrNoRows) {
			// Another instance has it, it is not due, or it is not there yet.
			tag, err := tx.Exec(ctx, b.sql.addCursor, b.consumer)
			more = tag.RowsAffected() > 0
			return err
		}
		if err != nil {
			return err
		}
		end := block + sweepBlocks
		tag, err := tx.Exec(ctx, b.sql.remove, b.consumer, tid(block), tid(end), b.cfg.Retention)
		if err != nil {
			return err
		}
		removed = tag.RowsAffected()
		if more = end < blocks; more {
			_, err = tx.Exec(ctx, b.sql.advance, b.consumer, end, time.Duration(0))
		} else {
			_, err = tx.Exec(ctx, b.sql.advance, b.consumer, 0, b.period())
		}
		return err
	})
	if err != nil {
		return false, err
	}
	if removed > 0 {
		b.metrics.removed.Add(ctx, removed, b.metrics.mine)
	}
	return more, nil
}

// tid is the place of a block's first row.
func tid(block int64) string { return fmt.Sprintf("(%d,0)", block) }
