package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/warrenmq/warren/internal/migrate"
	"github.com/warrenmq/warren/internal/pg"
)

const (
	// archiveAhead is for how many days there are partitions, today's included: a relay that makes them once a day always has
	// one to write to.
	archiveAhead = 3

	// checkViolation is the error for a partition whose rows are in the default one already.
	checkViolation = "23514"
)

// makePartitions makes the partitions of the archive for the days (in UTC) from now on, where they are missing, each in a
// transaction of its own. It waits for locks a second at most. What is archived on a day without one goes to the default
// partition, and nothing is lost but the ease of dropping it.
func (t tables) makePartitions(ctx context.Context, db migrate.Beginner, now time.Time) error {
	var errs []error
	for n := range archiveAhead {
		day := now.UTC().AddDate(0, 0, n)
		err := pgx.BeginTxFunc(ctx, db, pgx.TxOptions{}, func(tx pgx.Tx) error { return t.makePartition(ctx, tx, day) })
		if err != nil && pg.Code(err) != checkViolation {
			errs = append(errs, fmt.Errorf("partition of the archive for %s: %w", day.Format(time.DateOnly), err))
		}
	}
	return errors.Join(errs...)
}

func (t tables) makePartition(ctx context.Context, tx pgx.Tx, day time.Time) error {
	name := t.partition(day)
	there, err := selectAll[bool](ctx, tx, "SELECT to_regclass($1) IS NOT NULL", name)
	if err != nil || there[0] {
		return err
	}
	from, to := day.Format(time.DateOnly), day.AddDate(0, 0, 1).Format(time.DateOnly)
	for _, sql := range []string{
		"SET LOCAL lock_timeout = '1s'",
		fmt.Sprintf("SELECT pg_advisory_xact_lock((%d::bigint << 32) | %s::regclass::oid::bigint)", lockSpace, literal(t.archive())),
		fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s PARTITION OF %s FOR VALUES FROM ('%s 00:00:00+00') TO ('%s 00:00:00+00')",
			name, t.archive(), from, to),
	} {
		if _, err := tx.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// partition returns the table of what was sent on a day.
func (t tables) partition(day time.Time) string { return t.side("archive_" + day.Format("20060102")) }
