package outbox

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
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
	due := dueRows{}
	var moved int64
	var next []time.Duration
	err := t.ask(func(ctx context.Context, conn *pgx.Conn) (err error) {
		moved, next, err = t.move(ctx, conn, due)
		return err
	})
	if err != nil {
		return err
	}
	wait := slices.Min(append(next, t.relay.cfg.PollInterval))
	if moved == maxReleased || len(due) == t.relay.cfg.chunk() {
		wait = 0
	}
	t.plan = plan{next: time.Now().Add(wait), due: due}
	return nil
}

// move moves scheduled rows to their lane and forgets failures of rows that are gone. It returns how many it has moved and
// in what times there is more to do, and puts the failed rows that are due into due.
func (t *term) move(ctx context.Context, conn *pgx.Conn, due dueRows) (moved int64, next []time.Duration, err error) {
	var b pgx.Batch
	b.Queue(t.sql.release).Exec(func(tag pgconn.CommandTag) error { moved = tag.RowsAffected(); return nil })
	soon := func(row pgx.Row) error {
		var in *int64 // microseconds from now
		err := row.Scan(&in)
		if in != nil {
			next = append(next, time.Duration(max(*in, 0))*time.Microsecond)
		}
		return err
	}
	b.Queue(t.sql.nextRelease).QueryRow(soon)
	b.Queue(t.sql.nextRetry).QueryRow(soon)
	b.Queue(t.sql.dueRetries, t.inFlight.all(), t.relay.cfg.chunk()).Query(func(rows pgx.Rows) error {
		var id int64
		var attempts int
		_, err := pgx.ForEachRow(rows, []any{&id, &attempts}, func() error { due[id] = attempts; return nil })
		return err
	})
	if len(t.plan.forget) > 0 {
		b.Queue(t.sql.forgetRetries, t.plan.forget)
	}
	err = conn.SendBatch(ctx, &b).Close()
	return moved, next, err
}
