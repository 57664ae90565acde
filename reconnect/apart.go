package reconnect

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/apart"
	"github.com/warrenmq/warren/internal/report"
)

// errMoved ends a function's context, and a run of it, when it is to go on on another connection.
var errMoved = errors.New("to be run on another connection")

// ownCloseWithin bounds the close of a function's own connection, below what Conn.Close grants in the end.
const ownCloseWithin = 500 * time.Millisecond

// apart reports whether the function must not use the link now.
func (w *supervised) apart() bool {
	switch {
	case w.wish != nil:
		return true
	case w.tied.Load():
		return false
	}
	until, _, _ := w.link.unreadable.state(w.source())
	return until.After(time.Now())
}

// place returns the link on which the function is to run next.
func (w *supervised) place() (*link, error) {
	if !w.apart() {
		w.closeOwn()
		return w.link, nil
	}
	if w.own == nil {
		own := w.conn.ownLink(w)
		if !w.link.unreadable.add(own) {
			return nil, ErrClosed
		}
		w.own = own
	}
	return w.own, nil
}

// closeOwn closes the function's own link, if it has one.
func (w *supervised) closeOwn() {
	if w.own == nil {
		return
	}
	deadline := time.Now().Add(ownCloseWithin)
	last, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	if err := w.own.close(deadline, last); err != nil {
		w.log.Warn("closing a connection", "error", err) // the Conn's Close tries again
	} else {
		w.link.unreadable.remove(w.own)
	}
	w.own = nil
}

// afterLoss draws the conclusions from the loss of what the function ran on. When that was the function's own connection, and
// its own guilt, it returns how long the function may pause at most; else zero.
func (w *supervised) afterLoss(s *session, why error) (atMost time.Duration) {
	if w.own != nil && amqpCode(why) == amqp.ResourceLocked {
		w.tied.Store(true) // an exclusive queue, which the topology does not name, is on the link
	}
	if s.alive() {
		return 0
	}
	select {
	case <-s.lost():
	case <-time.After(time.Second): // the watcher is told right after the connection is marked closed
		return 0
	}
	if w.own == nil {
		w.link.judge(s)
		return 0
	}
	w.own.judge(s)
	switch {
	case s.unreadable():
		atMost = unreadablePause
	case w.wish == nil && endedBy(s.cause()):
		atMost = endedPause
	default:
		return 0
	}
	w.closeOwn()
	return atMost
}

// stay is one run of a function in one place. It ends when the function should be in another one.
type stay struct {
	w     *supervised
	own   bool                    // it has a connection of its own
	end   context.CancelCauseFunc // ends the function's context
	leave chan struct{}           // closed when it should go
	once  sync.Once
	asked atomic.Bool // to go
	minds atomic.Bool // leave, which the function has said
}

// attend starts to look after a run of the function on s, up to the end of ctx, which is the function's.
func (w *supervised) attend(ctx context.Context, s *session, end context.CancelCauseFunc) (*stay, context.Context) {
	st := &stay{w: w, own: w.own != nil, end: end, leave: make(chan struct{})}
	if w.wish != nil {
		return st, apart.WithDialer(ctx, w.link.dialer.socket) // it is never asked to go
	}
	if st.own {
		s.spawn(func() {
			if w.link.unreadable.awaitOver(ctx, w.source, w.repeat) {
				st.ask()
			}
		})
	}
	return st, report.Under(ctx, &report.Supervisor{
		State: w.report, Consumes: st.consumes, Careful: st.own, Leave: st.leave, Connection: s.lost(),
		Sender: &sender{conn: w.conn, session: s}})
}

// consumes is told the queue, which may be one that is known to be guilty.
func (st *stay) consumes(queue string) bool {
	st.minds.Store(true)
	if queue != "" {
		if was := st.w.queue.Swap(queue); was != queue {
			st.w.link.unreadable.retold()
		}
	}
	if !st.own && st.w.apart() {
		st.ask()
	}
	return !st.asked.Load()
}

// ask has the function go. One that does not know of such things gets to see that its context has ended, as when it is
// stopped.
func (st *stay) ask() {
	st.once.Do(func() {
		st.asked.Store(true)
		close(st.leave)
		if !st.minds.Load() {
			st.end(errMoved)
		}
	})
}

// moved reports whether the function has returned err only because it was asked to go.
func (st *stay) moved(ctx context.Context, err error) bool {
	return st.asked.Load() && (err == nil || ctx.Err() != nil && unlessEnded(ctx, err) == nil)
}

// note adds to a reason why the function is apart.
func (w *supervised) note(reason string) string {
	if w.tied.Load() {
		return reason
	}
	_, why, _ := w.link.unreadable.state(w.source())
	switch {
	case why == "":
		return reason
	case reason == "":
		return why
	}
	return why + ": " + reason
}
