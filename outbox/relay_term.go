package outbox

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/warrenmq/warren/reconnect"
)

// term is one time of leading a lane. It ends with the lead, or gracefully when Run's context does.
type term struct {
	*lane
	office  office
	tracker tracker // the fetcher's, as is all to hadFailed
	plan    plan
	// hadFailed says that the last fetch found rows that have failed before.
	hadFailed bool
	lost      atomic.Bool

	// chunks go from the fetcher to the sender. There is no room in it: the fetcher holds one chunk ready.
	chunks chan []*outgoing
	// progress is the sender's, for the fetcher.
	progress progress
	// sending ends when the lead is lost, or the grace after Run's end has passed.
	sending context.Context
}

// outgoing is a row on its way.
type outgoing struct {
	row
	id       int64
	attempts int // that have failed
	message  reconnect.Message
	fault    error // why it cannot be made a message of
	inDoubt  bool  // it may have arrived, by what an attempt ended with
}

func newTerm(l *lane, o office) *term {
	return &term{lane: l, office: o, chunks: make(chan []*outgoing), progress: progress{freed: make(chan struct{}, 1)}}
}

// run leads until the lead is lost, which it returns, or ctx ends.
func (t *term) run(ctx context.Context) error {
	defer t.office.resign()
	lead, lose := context.WithCancelCause(ctx) // ends with ctx or with the lead
	defer lose(nil)
	var end context.CancelCauseFunc
	t.sending, end = context.WithCancelCause(t.grace)
	defer end(nil)
	over := func(err error) {
		t.lost.Store(true)
		lose(err)
		end(err)
	}

	var keeper, sender sync.WaitGroup
	keeping, relieve := context.WithCancel(t.sending)
	defer keeper.Wait()
	defer relieve()
	keeper.Go(func() {
		if err := t.office.keep(keeping); err != nil {
			over(err)
		}
	})
	t.begin(lead)
	settled := make(chan struct{})
	sender.Go(func() {
		defer close(settled)
		if closed := t.send(lead); closed != nil {
			t.quit(closed)
		}
		if ctx.Err() != nil {
			t.done.wait(t.sending, 0) // nobody else is to fetch what was confirmed
		}
	})
	err := t.fetchUntil(lead)
	if ctx.Err() == nil {
		over(err)
	} else {
		t.holdUntil(settled)
	}
	sender.Wait()
	if t.lost.Load() {
		t.figures.unconfirmed.Store(0) // they are somebody else's now
		return context.Cause(lead)
	}
	return nil
}

// begin has written what the last term has left to delete, so that the state in the database is all there is. What cannot
// be written yet stays in flight.
func (t *term) begin(lead context.Context) {
	ctx, cancel := context.WithTimeout(lead, probeTimeout)
	defer cancel()
	t.done.wait(ctx, 0)
	t.inFlight.reset(t.done.pending())
}

// holdUntil keeps the lead until everything that was sent is settled.
func (t *term) holdUntil(settled <-chan struct{}) {
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	for {
		select {
		case <-settled:
			return
		case <-t.sending.Done():
			return
		case <-tick.C:
			if t.office.probe(t.sending) != nil {
				return // it is lost; what was sent is settled all the same
			}
		}
	}
}

// ask runs a statement, or several, on the connection that rows are fetched on. It goes on when Run's context ends: to break
// a statement off closes the connection, and the lead would be lost while rows are still out.
func (t *term) ask(fn func(ctx context.Context, conn *pgx.Conn) error) error {
	return t.askFor(quickTimeout, fn)
}

func (t *term) askFor(limit time.Duration, fn func(ctx context.Context, conn *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(t.sending, limit)
	defer cancel()
	start := time.Now()
	if err := fn(ctx, t.office.conn()); err != nil {
		return err
	}
	t.office.heard(start)
	return nil
}
