package outbox

import (
	"context"
	"errors"
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
	tracker tracker // the fetcher's
	plan    plan    // the fetcher's
	lost    atomic.Bool

	// chunks go from the fetcher to the sender. There is no room in it: the fetcher holds one chunk ready.
	chunks chan []*outgoing
	// sender says what the sender is at, for the fetcher.
	sender senderState
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
}

func newTerm(l *lane, o office) *term {
	return &term{lane: l, office: o, chunks: make(chan []*outgoing), sender: senderState{freed: make(chan struct{}, 1)}}
}

// run leads until the lead is lost, which it returns, or ctx ends.
func (t *term) run(ctx context.Context) error {
	defer t.office.resign()
	var end context.CancelCauseFunc
	t.sending, end = context.WithCancelCause(t.grace)
	defer end(nil)
	// What the last term has left to delete comes first: then the state in the database is all there is.
	flush, cancel := context.WithTimeout(ctx, probeTimeout)
	t.done.wait(flush, 0)
	cancel()
	t.inFlight.reset(t.done.pending())

	lead, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	var keeper, sends sync.WaitGroup
	keeping, relieve := context.WithCancel(t.sending)
	keeper.Go(func() {
		if err := t.office.keep(keeping); err != nil {
			t.lost.Store(true)
			lose(err)
			end(err)
		}
	})
	var closed error
	settled := make(chan struct{})
	sends.Go(func() {
		defer close(settled)
		if closed = t.send(lead); closed != nil {
			lose(closed)
		}
		if ctx.Err() != nil {
			t.done.wait(t.sending, 0) // nobody else is to fetch what was confirmed
		}
	})
	err := t.fetchUntil(lead)
	if ctx.Err() == nil || t.lost.Load() {
		t.lost.Store(true)
		end(err)
	} else {
		err = t.holdUntil(settled)
	}
	lose(err)
	sends.Wait()
	relieve()
	keeper.Wait()
	return errors.Join(closed, cmpCause(lead, err))
}

// cmpCause returns why ctx ended when that says more than err.
func cmpCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// holdUntil keeps the lead until everything that was sent is settled.
func (t *term) holdUntil(settled <-chan struct{}) error {
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	for {
		select {
		case <-settled:
			return nil
		case <-t.sending.Done():
			return nil
		case <-tick.C:
			if err := t.office.probe(t.sending); err != nil {
				return err
			}
		}
	}
}

// ask runs a statement, or several, on the connection that rows are fetched on. It goes on when Run's context ends: to break
// a statement off closes the connection, and the lead would be lost while rows are still out.
func (t *term) ask(fn func(ctx context.Context, conn *pgx.Conn) error) error { return t.askFor(quickTimeout, fn) }

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
