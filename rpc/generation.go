package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/report"
	"github.com/warrenmq/warren/reconnect"
)

const (
	// returnsRoom is how many returned requests the reader of the connection may be ahead of ours.
	returnsRoom = 1024
	// lookEvery is how often the confirmations of pending calls are looked at. Usually the answer says that a request has
	// arrived; only a queue that refused one says so here, and nobody should be woken twice a call for that.
	lookEvery = 20 * time.Millisecond
)

var (
	errEnded      = errors.New("the consumer of replies has ended")
	errAborted    = errors.New("closed while the call was pending")
	errHandedBack = fmt.Errorf("%w: the server that had the request stops, and the queue is full", reconnect.ErrRefused)
	errServerLost = fmt.Errorf("%w: the server that had the request died, or was cut off from it", reconnect.ErrUnknown)
)

// generation is the life of one channel: its reply consumer, and the calls that are pending on it. Whoever takes a call out
// of calls, under mu, decides what becomes of it, so each gets exactly one end. mu is never held while anything waits.
type generation struct {
	core   *core
	line   *line
	life   context.Context // of the supervised function
	ch     *amqp.Channel
	sender report.Sender
	over   chan struct{} // closed once why is set and no call is pending any more
	why    error

	mu      sync.Mutex
	calls   map[string]*call // by correlation id
	shut    error            // not nil: no further calls
	leaving bool             // it ends once no call is pending
	drained chan struct{}    // closed: shut, and none is pending
	looking bool             // the timer runs
	timer   *time.Timer
}

func newGeneration(life context.Context, l *line, ch *amqp.Channel) *generation {
	g := &generation{core: l.core, line: l, life: life, ch: ch, sender: report.SenderOf(life), over: make(chan struct{}), calls: make(map[string]*call), drained: make(chan struct{})}
	g.timer = time.AfterFunc(time.Hour, g.look)
	g.timer.Stop()
	return g
}

// add makes k pending, unless the generation takes no more calls: then it returns why.
func (g *generation) add(k *call) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut != nil {
		return g.shut
	}
	g.calls[k.id] = k
	g.core.pending.Add(1)
	if g.line.confirms && !g.looking {
		g.looking = true
		g.timer.Reset(lookEvery)
	}
	return nil
}

// take takes the call with id out, nil when there is none.
func (g *generation) take(id string) *call {
	g.mu.Lock()
	defer g.mu.Unlock()
	k := g.calls[id]
	if k != nil {
		g.drop(id)
	}
	return k
}

// remove takes k out, and reports whether it was still pending.
func (g *generation) remove(k *call) bool { return g.take(k.id) != nil }

// drop is called with mu held.
func (g *generation) drop(id string) {
	delete(g.calls, id)
	g.core.pending.Add(-1)
	if len(g.calls) > 0 {
		return
	}
	if g.leaving && g.shut == nil {
		g.shut = errGone
	}
	if g.shut != nil {
		close(g.drained)
	}
}

// leave has the generation end as soon as no call is pending: another on another connection takes its place. It goes on to
// take calls until then, or those would wait for the slowest.
func (g *generation) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.leaving = true; g.shut == nil && len(g.calls) == 0 {
		g.shut = errGone
		close(g.drained)
	}
}

// close lets no further calls in, because of why.
func (g *generation) close(why error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut != nil {
		return
	}
	g.shut = why
	if len(g.calls) == 0 {
		close(g.drained)
	}
}

// read hands out what comes until the channel is lost, or ctx has ended, or leave was closed, and no call is pending any more.
func (g *generation) read(ctx context.Context, replies <-chan amqp.Delivery, returns <-chan amqp.Return, closed <-chan *amqp.Error) error {
	stop, leave := ctx.Done(), report.Leave(ctx)
	var abort <-chan struct{}
	for {
		select {
		case d, ok := <-replies:
			if !ok {
				return g.lost(ctx, closed)
			}
			g.reply(d)
		case r, ok := <-returns:
			if !ok {
				return g.lost(ctx, closed)
			}
			g.returned(r)
		case e := <-closed:
			return lossError(e)
		case <-stop:
			if g.ch.IsClosed() {
				return g.lost(ctx, closed)
			}
			g.close(reconnect.ErrClosed)
			stop, abort = nil, g.line.abort
		case <-leave:
			g.leave()
			leave = nil
		case <-g.drained:
			return nil
		case <-abort:
			return fmt.Errorf("%w: %w", reconnect.ErrClosed, errAborted)
		}
	}
}

// lost returns why the channel is gone. The driver ends a consumer a moment before it says so.
func (g *generation) lost(ctx context.Context, closed <-chan *amqp.Error) error {
	if !g.ch.IsClosed() {
		// The broker has cancelled the consumer: nothing can be answered here any more. A closed channel is a lost one.
		_ = g.ch.Close()
		return errEnded
	}
	t := time.NewTimer(time.Second)
	defer t.Stop()
	select {
	case e := <-closed:
		return lossError(e)
	case <-t.C:
		return lossError(nil)
	}
}

func lossError(e *amqp.Error) error {
	if e == nil {
		e = amqp.ErrClosed
	}
	return fmt.Errorf("channel lost: %w", e)
}

// reply hands a reply to its call.
func (g *generation) reply(d amqp.Delivery) {
	d.Acknowledger = nil // it is acknowledged; a second time would close the channel
	switch kindOf(d.Headers) {
	case kindStarted:
		g.started(d)
		return
	case kindCancel: // of somebody who takes this channel for a server's
		g.core.dropped.Add(1)
		return
	}
	k := g.take(d.CorrelationId)
	if k == nil {
		g.core.dropped.Add(1)
		return
	}
	k.reply = d
	k.done <- struct{}{}
}

// returned ends the call whose request no queue took.
func (g *generation) returned(r amqp.Return) {
	if k := g.take(r.CorrelationId); k != nil {
		k.end(outcome{err: fmt.Errorf("%w: %w", ErrNoServer, &reconnect.ReturnedError{Exchange: r.Exchange, Key: r.RoutingKey,
			MessageID: r.MessageId, Code: r.ReplyCode, Text: r.ReplyText})})
	}
}

// look ends the calls whose requests a queue refused.
func (g *generation) look() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for id, k := range g.calls {
		confirm := k.confirm.Load()
		if confirm == nil {
			continue
		}
		select {
		case <-confirm.Done():
		default:
			continue
		}
		switch {
		case confirm.Acked():
			k.confirm.Store(nil)
		case g.ch.IsClosed(): // that was why
		default:
			g.drop(id)
			k.end(outcome{err: reconnect.ErrRefused})
		}
	}
	if g.looking = len(g.calls) > 0; g.looking {
		g.timer.Reset(lookEvery)
	}
}

// end ends all calls that are still pending, since the channel is gone because of why.
func (g *generation) end(why error) {
	if why == nil {
		why = reconnect.ErrClosed
	}
	g.mu.Lock()
	g.why = why
	if g.shut == nil {
		g.shut = errGone
	}
	g.timer.Stop()
	left := make([]*call, 0, len(g.calls))
	for id, k := range g.calls {
		g.drop(id)
		left = append(left, k)
	}
	g.mu.Unlock()
	out := outcome{err: fmt.Errorf("%w: %w", reconnect.ErrUnknown, why), lost: true}
	if refusal := g.refusal(why); refusal != nil {
		if guilty := g.blame(left, refusal); guilty != nil && len(left) == 1 {
			out = outcome{err: refusedWith(refusal)}
		}
	}
	for _, k := range left {
		k.end(out)
	}
	close(g.over)
}

// refusal returns the broker's error when it closed the channel over a request, nil otherwise.
func (g *generation) refusal(why error) *amqp.Error {
	var e *amqp.Error
	if !errors.As(why, &e) || !e.Server {
		return nil
	}
	tooLarge := e.Code == amqp.ContentTooLarge || e.Code == amqp.PreconditionFailed &&
		(strings.Contains(e.Reason, "max size") || strings.Contains(e.Reason, "larger than"))
	if e.Code == amqp.NotFound || e.Code == amqp.AccessRefused || tooLarge {
		return e
	}
	return nil
}

// blame notes over which request the channel was closed, as far as that can be told: all go to one exchange, and where the
// size is the matter it is the largest.
func (g *generation) blame(left []*call, refusal *amqp.Error) (guilty *call) {
	for _, k := range left {
		if guilty == nil || len(k.body) > len(guilty.body) {
			guilty = k
		}
	}
	if guilty != nil {
		g.sender.Refused(g.core.cfg.Exchange, guilty.key, guilty.body, refusal)
	}
	return guilty
}

// refusedWith is the error of a call whose request the broker does not take.
func refusedWith(refusal *amqp.Error) error {
	if refusal.Code == amqp.NotFound {
		return fmt.Errorf("%w: %w", ErrNoServer, refusal)
	}
	return refusal
}
