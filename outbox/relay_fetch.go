package outbox

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/warrenmq/warren/internal/pg"
)

const (
	// sweepInterval is how often rows are looked for by their state though cursor and gaps know them all: a safety net.
	sweepInterval = time.Minute

	// eagerPoll is how soon an idle relay looks again after it has found something; then it waits twice as long each time.
	eagerPoll = 50 * time.Millisecond
)

// fetchUntil reads rows and hands them on, until ctx ends or the lead is lost. It closes chunks.
func (t *term) fetchUntil(ctx context.Context) error {
	defer close(t.chunks)
	if err := t.recover(); err != nil {
		return err
	}
	if err := t.countParked(); err != nil {
		return err
	}
	poll, swept := eagerPoll, time.Now()
	for {
		if err := t.awaitSender(ctx); err != nil {
			return err
		}
		if err := t.upkeep(); err != nil {
			return err
		}
		sweep := time.Since(swept) >= sweepInterval
		if sweep {
			swept = time.Now()
			if err := t.countParked(); err != nil {
				return err
			}
		}
		rows, full, err := t.fetch(sweep)
		if err != nil {
			return err
		}
		if len(rows) > 0 {
			poll = eagerPoll
			if err := t.handOn(ctx, rows); err != nil {
				return err
			}
		}
		if full {
			continue
		}
		if err := t.idle(ctx, min(poll, t.plan.wait())); err != nil {
			return err
		}
		poll = min(2*poll, t.relay.cfg.PollInterval)
	}
}

// recover begins without a memory: all that is pending is found by its state, for as long as a transaction that has drawn
// an id before may still commit.
func (t *term) recover() error {
	return t.ask(func(ctx context.Context, conn *pgx.Conn) error {
		var last int64
		err := conn.QueryRow(ctx, t.sql.lastID).Scan(&last)
		if pg.Code(err) == insufficientPrivilege {
			last, err = 0, nil // then the first jump of the ids shows where they are
		}
		t.tracker.recover(last, time.Now())
		return err
	})
}

const insufficientPrivilege = "42501"

// countParked counts the rows that were given up, for the metrics.
func (t *term) countParked() error {
	return t.ask(func(ctx context.Context, conn *pgx.Conn) error {
		var n int64
		err := conn.QueryRow(ctx, t.sql.countParked).Scan(&n)
		t.figures.parked.Store(n)
		return err
	})
}

// fetch reads the next rows, in the order of their ids, and reports whether there may be more of them.
//
// Rows that have failed come before new ones, by their ids; so that many of them do not keep back the new ones, each fetch
// that has found some is followed by one that leaves them out.
func (t *term) fetch(sweep bool) (rows []*outgoing, full bool, err error) {
	byState := t.tracker.byState() || sweep
	fresh := t.hadFailed
	due := t.plan.takeDue(byState, fresh)
	t.dropNotifications()
	start := time.Now()
	var s sighting
	if byState {
		rows, err = t.query(&s, queryTimeout, t.sql.byState, t.inFlight.all(), t.relay.cfg.chunk(), fresh)
	} else {
		rows, err = t.query(&s, quickTimeout, t.sql.byCursor, due.with(t.tracker.missing()), t.relay.cfg.chunk(), t.tracker.cursor)
	}
	if err != nil {
		return nil, false, err
	}
	t.relay.metrics.fetched(t.lane, time.Since(start))
	late := t.late(rows, byState)
	t.tracker.observe(s, byState, start)
	t.figures.gaps.Store(int64(len(t.tracker.gaps)))
	for _, o := range rows {
		if n, failed := due[o.id]; failed {
			o.attempts = n
			delete(due, o.id)
		}
		o.message, o.fault = o.row.message()
	}
	t.hadFailed = slices.ContainsFunc(rows, func(o *outgoing) bool { return o.attempts > 0 })
	t.inFlight.add(s.ids...)
	if !s.full {
		t.plan.orphans(due)
	}
	if late > 0 {
		t.log.Warn("outbox: rows were found late, by the sweep", "rows", late)
		t.relay.metrics.missed(t.lane, late)
		err = t.recover() // what it knew of ids is of no use, and there may be more of them
	}
	return rows, s.full, err
}

// query runs a statement that looks for rows, and notes in s what it saw.
func (t *term) query(s *sighting, within time.Duration, sql string, args ...any) (rows []*outgoing, err error) {
	err = t.askFor(within, func(ctx context.Context, conn *pgx.Conn) error {
		found, err := conn.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		rows, err = s.read(found, t.relay.cfg.chunk())
		return err
	})
	return rows, err
}

// late counts the rows that cursor and gaps had no knowledge of: because their ids were drawn anew, as after a TRUNCATE, or
// by a fault of the relay.
func (t *term) late(rows []*outgoing, byState bool) (n int) {
	if !byState || t.tracker.byState() {
		return 0
	}
	for _, o := range rows {
		if o.id <= t.tracker.cursor && o.attempts == 0 && !t.tracker.isMissing(o.id) {
			n++
		}
	}
	return n
}

// dropNotifications forgets those that have come: what they speak of is in the fetch that follows.
func (t *term) dropNotifications() {
	if !t.office.listens() {
		return
	}
	ended, end := context.WithCancel(t.sending)
	end() // what is here is returned all the same
	for n := (*pgconn.Notification)(nil); ; {
		if n, _ = t.office.conn().WaitForNotification(ended); n == nil {
			return
		}
	}
}

// read takes what a fetch found.
func (s *sighting) read(found pgx.Rows, limit int) ([]*outgoing, error) {
	defer found.Close()
	rows := make([]*outgoing, 0, limit)
	bytes := 0
	for found.Next() {
		if found.RawValues()[2] == nil { // nothing but the snapshot
			if err := found.Scan(append([]any{&s.xmin, &s.xmax}, make([]any, len(found.RawValues())-2)...)...); err != nil {
				return nil, err
			}
			continue
		}
		o := new(outgoing)
		if err := found.Scan(append([]any{&s.xmin, &s.xmax, &o.id, &o.attempts}, o.row.targets()...)...); err != nil {
			return nil, err
		}
		bytes += len(o.payload)
		rows = append(rows, o)
	}
	byID := func(a, b *outgoing) int { return cmp.Compare(a.id, b.id) }
	if !slices.IsSortedFunc(rows, byID) {
		slices.SortFunc(rows, byID)
	}
	for _, o := range rows {
		s.ids = append(s.ids, o.id)
	}
	s.full = len(rows) >= limit || bytes >= maxFetchBytes
	return rows, found.Err()
}

// handOn gives rows to the sender. While that is busy, or the broker away, it makes sure that this relay still leads, and
// asks the database nothing else.
func (t *term) handOn(ctx context.Context, rows []*outgoing) error {
	select {
	case t.chunks <- rows:
		return nil
	default:
	}
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	for {
		select {
		case t.chunks <- rows:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
			if err := t.office.probe(t.sending); err != nil {
				return err
			}
		}
	}
}

// idle waits for d, or until something was enqueued, here or elsewhere, and sees to it that the lead is not lost by silence.
func (t *term) idle(ctx context.Context, d time.Duration) error {
	for end := time.Now().Add(d); ; {
		left := time.Until(end)
		woken, err := t.awaitWake(ctx, min(left, probeInterval))
		if err != nil || woken || left <= probeInterval {
			return err
		}
		if err := t.office.probe(t.sending); err != nil {
			return err
		}
	}
}

// awaitWake waits for d and reports whether something woke it before.
func (t *term) awaitWake(ctx context.Context, d time.Duration) (woken bool, err error) {
	waiting, stop := context.WithTimeout(ctx, d)
	defer stop()
	if !t.office.listens() {
		select {
		case <-t.wake.C:
			return true, nil
		case <-waiting.Done():
			return false, context.Cause(ctx)
		}
	}
	here := make(chan bool, 1)
	go func() {
		select {
		case <-t.wake.C:
			stop()
			here <- true
		case <-waiting.Done():
			here <- false
		}
	}()
	_, err = t.office.conn().WaitForNotification(waiting)
	elsewhere := err == nil
	if waiting.Err() != nil && !t.office.conn().IsClosed() {
		err = nil // its time was up
	}
	stop()
	woken = <-here || elsewhere
	if ctx.Err() != nil {
		return woken, context.Cause(ctx)
	}
	return woken, err
}
