package outbox

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/warrenmq/warren/internal/backoff"
)

// result is what became of rows that were sent together.
type result struct {
	term   *term
	sent   []*outgoing
	failed []failure
	parked []failure
}

// failure is a row that was not sent, and why.
type failure struct {
	*outgoing
	reason error
	delay  time.Duration // until the next attempt
}

func (r *result) empty() bool { return len(r.sent)+len(r.failed)+len(r.parked) == 0 }

func (r *result) join(other *result) {
	r.sent = append(r.sent, other.sent...)
	r.failed = append(r.failed, other.failed...)
	r.parked = append(r.parked, other.parked...)
}

func (r *result) rows() int { return len(r.sent) + len(r.failed) + len(r.parked) }

// fail notes that a row has failed: it is tried again, or parked.
func (r *result) fail(o *outgoing, v verdict, reason error) {
	cfg := r.term.relay.cfg
	o.attempts++
	if v == hopeless || cfg.MaxAttempts > 0 && o.attempts >= cfg.MaxAttempts {
		r.parked = append(r.parked, failure{outgoing: o, reason: reason})
		return
	}
	delay := retryAfter(reason)
	if delay == 0 {
		delay = backoff.Policy{Min: cfg.BackoffMin, Max: cfg.BackoffMax}.Delay(o.attempts)
	}
	r.failed = append(r.failed, failure{o, reason, delay})
}

// completer writes results to the database, in a goroutine and on a connection of its own, while the next rows are
// fetched and sent. It asks again until a result is written. It outlives the terms of its lane: what was confirmed is
// deleted even if the lead has been lost meanwhile.
type completer struct {
	lane *lane
	conn *pgx.Conn // the goroutine's

	mu      sync.Mutex
	queue   []*result     // the first is being written
	changed chan struct{} // closed, and made anew, when queue changes
}

func newCompleter(l *lane) *completer { return &completer{lane: l, changed: make(chan struct{})} }

// start runs the completer until the returned function is called, which waits for it. Statements end with ctx.
func (c *completer) start(ctx context.Context) (stop func()) {
	running, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for r := c.next(running); r != nil; r = c.next(running) {
			c.write(running, r)
			c.drop()
		}
		hangUp(c.conn)
		c.conn = nil
	}()
	return func() {
		cancel()
		<-ended
	}
}

// add has r written. What waits behind the result that is being written goes together.
func (c *completer) add(r *result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if last := len(c.queue) - 1; last > 0 && c.queue[last].term == r.term {
		c.queue[last].join(r)
	} else {
		c.queue = append(c.queue, r)
	}
	c.tell()
}

// drop takes the first result off, unless it could not be written to the end.
func (c *completer) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.queue[0].empty() {
		c.queue = c.queue[1:]
		c.tell()
	}
}

func (c *completer) tell() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// next waits for a result to be written; nil when ctx has ended.
func (c *completer) next(ctx context.Context) *result {
	for ctx.Err() == nil {
		c.mu.Lock()
		changed := c.changed
		if len(c.queue) > 0 {
			defer c.mu.Unlock()
			return c.queue[0]
		}
		c.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	return nil
}

// wait blocks until no more than so many rows wait for being written, or ctx ends.
func (c *completer) wait(ctx context.Context, most int) {
	for {
		c.mu.Lock()
		changed, n := c.changed, c.count()
		c.mu.Unlock()
		if n <= most {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// rows returns how many rows wait for being written.
func (c *completer) rows() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count()
}

func (c *completer) count() (n int) {
	for _, r := range c.queue {
		n += r.rows()
	}
	return n
}

// pending returns the ids of those rows.
func (c *completer) pending() (ids []int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.queue {
		for _, o := range r.sent {
			ids = append(ids, o.id)
		}
	}
	return ids
}

// write writes r; what is written is taken out of it. It returns with something in it only when ctx has ended.
func (c *completer) write(ctx context.Context, r *result) {
	for attempt := 0; backoff.Sleep(ctx, dbBackoff.Delay(attempt)) == nil; attempt++ {
		within := queryTimeout
		if attempt == 0 {
			within = quickTimeout // its session may be dead without a word: then a new one is tried before long
		}
		err := c.tryWrite(ctx, within, r)
		if err == nil {
			return
		}
		hangUp(c.conn)
		c.conn = nil
		if attempt == 1 && ctx.Err() == nil { // the first is the connection's, as a rule
			c.lane.log.Warn("outbox: cannot delete what was sent", "rows", r.rows(), "error", err)
		}
	}
}

func (c *completer) tryWrite(ctx context.Context, within time.Duration, r *result) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if c.conn == nil {
		conn, err := c.lane.relay.connect(ctx)
		if err != nil {
			return err
		}
		c.conn = conn
		if c.lane.relay.cfg.Lease == 0 {
			if _, err := conn.Exec(ctx, setSession, "{"+ownSettings+"}"); err != nil {
				return err
			}
		}
	}
	var retried []int64
	if len(r.sent) > 0 {
		ids, messages := make([]int64, len(r.sent)), make([]pgtype.UUID, len(r.sent))
		for i, o := range r.sent {
			ids[i], messages[i] = o.id, pgtype.UUID{Bytes: o.messageID, Valid: true}
			if o.attempts > 0 {
				retried = append(retried, o.id)
			}
		}
		if _, err := c.conn.Exec(ctx, c.lane.sql.remove, ids, messages); err != nil {
			return err
		}
		c.settled(r, ids, &r.sent)
	}
	return c.writeFailures(ctx, r, retried)
}

// settled takes what was written out of r. Only then may fetches find what there still is of it.
func (c *completer) settled(r *result, ids []int64, part *[]*outgoing) {
	c.mu.Lock()
	*part = nil
	c.tell()
	c.mu.Unlock()
	c.lane.inFlight.remove(ids...)
}

// writeFailures notes failures, parks rows, and forgets the failures of those that were retried. After the lead was lost it
// leaves them to whoever leads now.
func (c *completer) writeFailures(ctx context.Context, r *result, retried []int64) error {
	if r.term.lost.Load() {
		c.finish(r)
		return nil
	}
	var b pgx.Batch
	if len(r.failed) > 0 {
		f := tell(r.failed)
		b.Queue(c.lane.sql.postpone, f.ids, f.messages, f.attempts, f.reasons, f.delays)
	}
	if len(r.parked) > 0 {
		f := tell(r.parked)
		b.Queue(c.lane.sql.park, f.ids, f.messages, f.attempts, f.reasons)
		retried = append(retried, f.ids...)
	}
	if len(retried) > 0 {
		b.Queue(c.lane.sql.forgive, retried)
	}
	if b.Len() > 0 {
		if err := c.conn.SendBatch(ctx, &b).Close(); err != nil {
			return err
		}
	}
	if len(r.failed)+len(r.parked) > 0 {
		c.log(r)
	}
	c.finish(r)
	return nil
}

// finish lets go of the failures of r, and has the fetcher plan their next attempts.
func (c *completer) finish(r *result) {
	ids := append(tell(r.failed).ids, tell(r.parked).ids...)
	if len(ids) == 0 {
		return
	}
	c.mu.Lock()
	r.failed, r.parked = nil, nil
	c.mu.Unlock()
	c.lane.inFlight.remove(ids...)
	c.lane.failures.Store(true)
	select {
	case c.lane.wake.C <- struct{}{}:
	default:
	}
}

// log says what failed: each row that was parked, and the first of those that are tried again.
func (c *completer) log(r *result) {
	for _, f := range r.parked {
		c.lane.log.Error("outbox: parked a message", "message", f.message.MessageId, "exchange", f.exchange, "key", f.key,
			"attempts", f.attempts, "reason", reasonOf(f.reason))
	}
	if len(r.failed) > 0 {
		f := r.failed[0]
		c.lane.log.Warn("outbox: messages failed and are sent again later", "messages", len(r.failed), "exchange", f.exchange,
			"key", f.key, "attempts", f.attempts, "reason", reasonOf(f.reason))
	}
	c.lane.relay.metrics.count(c.lane, "failed", len(r.failed))
	c.lane.relay.metrics.count(c.lane, "parked", len(r.parked))
}

// told are failures as the columns that statements take.
type told struct {
	ids      []int64
	messages []pgtype.UUID
	attempts []int32
	reasons  []string
	delays   []int64
}

func tell(failures []failure) (t told) {
	for _, f := range failures {
		t.ids = append(t.ids, f.id)
		t.messages = append(t.messages, pgtype.UUID{Bytes: f.messageID, Valid: true})
		t.attempts = append(t.attempts, int32(f.attempts))
		t.reasons = append(t.reasons, reasonOf(f.reason))
		t.delays = append(t.delays, f.delay.Microseconds())
	}
	return t
}
