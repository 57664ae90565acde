package outbox

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// maxReleased is how many scheduled rows move to their lane at once.
const maxReleased = 1000

// plan is what is to be done at a time: scheduled rows move to their lane, failed ones are tried again. It belongs to the
// fetcher.
type plan struct {
	next   time.Time // when to look again
	due    dueRows
	forget []int64 // failures noted of rows that are gone
}

// dueRows are failed rows whose time has come, with their attempts.
type dueRows map[int64]int

// with returns gaps and the due rows together: what a fetch by cursor looks for besides new rows.
func (d dueRows) with(gaps []int64) []int64 { return slices.AppendSeq(gaps, maps.Keys(d)) }

// wait returns how long there is nothing to do.
func (p *plan) wait() time.Duration { return max(time.Until(p.next), time.Millisecond) }

// takeDue returns the rows that are due now. A fetch by state finds them by itself, and one of fresh rows leaves them out.
func (p *plan) takeDue(byState, fresh bool) dueRows {
	if fresh {
		return nil
	}
	due := p.due
	p.due = nil
	if byState {
		return nil
	}
	return due
}

// orphans takes in rows that were due and that a fetch would have found had they been there.
func (p *plan) orphans(rows dueRows) { p.forget = slices.AppendSeq(p.forget, maps.Keys(rows)) }

// upkeep does what is due.
func (t *term) upkeep() error {
	if failures := t.failures.Swap(false); !failures && time.Now().Before(t.plan.next) {
		return nil
	}
	if err := t.archiveDays(); err != nil {
		return err
	}
	var moved int64
	var nextRelease, nextRetry *int64 // microseconds from now
	due := dueRows{}
	var b pgx.Batch
	b.Queue(t.sql.release)
	b.Queue(t.sql.nextRelease)
	b.Queue(t.sql.dueRetries, t.inFlight.all(), t.relay.cfg.Batch)
	b.Queue(t.sql.nextRetry)
	if len(t.plan.forget) > 0 {
		b.Queue(t.sql.forgetRetries, t.plan.forget)
	}
	err := t.ask(func(ctx context.Context, conn *pgx.Conn) error {
		results := conn.SendBatch(ctx, &b)
		defer results.Close()
		tag, err := results.Exec()
		if err != nil {
			return err
		}
		moved = tag.RowsAffected()
		if err := results.QueryRow().Scan(&nextRelease); err != nil {
			return err
		}
		rows, err := results.Query()
		if err != nil {
			return err
		}
		var id int64
		var attempts int
		if _, err := pgx.ForEachRow(rows, []any{&id, &attempts}, func() error { due[id] = attempts; return nil }); err != nil {
			return err
		}
		if err := results.QueryRow().Scan(&nextRetry); err != nil {
			return err
		}
		return results.Close()
	})
	if err != nil {
		return err
	}
	wait := t.relay.cfg.PollInterval
	for _, in := range []*int64{nextRelease, nextRetry} {
		if in != nil {
			wait = min(wait, time.Duration(max(*in, 0))*time.Microsecond)
		}
	}
	if moved == maxReleased || len(due) == t.relay.cfg.Batch {
		wait = 0
	}
	t.plan = plan{next: time.Now().Add(wait), due: due}
	return nil
}
