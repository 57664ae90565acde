package consume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/report"
)

// neighbours is how long a stopping worker waits for the other consumers of its loop to be cancelled before it hands
// anything back: they would get it. They are told at the same time, so this is a round trip, unless one of them has no link.
const neighbours = 2 * time.Second

// call makes a synchronous call on the channel. On a frozen link it hangs until the heartbeats end the connection: after the end of grace
// period and AbandonAfter nobody waits for it any more, and no other call may be made on the channel.
func call[T any](g *generation, fn func() (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	go func() {
		v, err := fn()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-g.hard:
		var zero T
		return zero, errHung
	}
}

// withdraw cancels the current consumer and hands back what was not started. With apart it first waits until every consumer of
// the loop is cancelled.
func (g *generation) withdraw(apart bool) error {
	g.mu.Lock()
	alive := slices.Clone(g.alive)
	g.mu.Unlock()
	for _, s := range alive {
		s.stop()
	}
	if s := g.current; s != nil {
		if apart {
			g.quiesce()
		}
		if err := g.cancel(s); err != nil {
			return err
		}
		g.current = nil
	}
	if apart {
		g.waitNeighbours(0)
	}
	var rest []back
	for _, s := range alive {
		for d := range s.deliveries { // ends: the consumer is cancelled, or the channel gone
			rest = append(rest, back{d, true})
		}
	}
	g.awaitWorker()
	return g.sweep(rest)
}

// quiesce waits until nothing is on its way from the queue, or the broker would return that by itself, to a neighbour that is not
// cancelled yet.
func (g *generation) quiesce() {
	quiet := make(chan struct{})
	g.out.freeze(func() { close(quiet) })
	select {
	case <-quiet:
	case <-g.hard:
	}
}

// waitNeighbours waits until no more than n consumers of the loop are active.
func (g *generation) waitNeighbours(n int) {
	t := time.NewTimer(neighbours)
	defer t.Stop()
	g.loop.active.atMost(n, g.hard, t.C)
}

// requeueWithin bounds Config.Requeue for all that a worker hands back at a time.
const requeueWithin = 5 * time.Second

// sweep hands back rest and what the worker left to hand back, in the order of the queue.
func (g *generation) sweep(rest []back) error {
	if g.cfg.Ordered {
		return nil // the close of the channel returns it, in order
	}
	g.mu.Lock()
	rest = append(rest, g.backs...)
	g.backs = nil
	g.mu.Unlock()
	if len(rest) == 0 {
		return nil
	}
	slices.SortFunc(rest, func(a, b back) int { return cmp.Compare(a.d.DeliveryTag, b.d.DeliveryTag) })
	ctx, cancel := context.WithTimeout(context.Background(), requeueWithin)
	defer cancel()
	_, err := call(g, func() (struct{}, error) {
		g.handBack(ctx, rest)
		return struct{}{}, nil
	})
	return err
}

// handBack hands back rest, with as few commands as it may: only a copy is settled at once. When the channel is closed it ends; that is noticed
// elsewhere.
func (g *generation) handBack(ctx context.Context, rest []back) {
	most, last, n := g.together(), uint64(0), 0
	send := func() bool {
		run := n
		n = 0
		return run == 0 || g.out.back(last, run)
	}
	for _, b := range rest {
		if g.requeue(ctx, b) {
			if !send() || !g.out.moved(b.d.DeliveryTag) {
				return
			}
			continue
		}
		last = b.d.DeliveryTag
		if n++; n == most && !send() {
			return
		}
	}
	send()
}

// requeue reports whether a copy of b is back in the queue.
func (g *generation) requeue(ctx context.Context, b back) bool {
	return b.fresh && g.cfg.Requeue != nil && !g.out.dead() &&
		g.guard(func() error { return g.cfg.Requeue(ctx, b.d) }) == nil
}

// finish ends the generation in good order: nothing new, let the started handler finish, settle, hand back, close the channel. The broker's
// close-ok is the proof that it has the acks, once prove has seen to what it would not cover. It returns then if all went well.
func (g *generation) finish(ctx context.Context, then error) error {
	g.leave()
	select {
	case _, ok := <-g.cancels:
		if ok { // that was the reason
			return g.cancelledByBroker()
		}
	default:
	}
	if !g.cfg.Ordered {
		if err := g.withdraw(true); err != nil {
			return g.failed(ctx, err)
		}
	}
	if err := g.waitIdle(); err != nil {
		return err
	}
	if err := g.sweep(nil); err != nil {
		return g.failed(ctx, err)
	}
	if err := g.prove(ctx); err != nil {
		return g.failed(ctx, err)
	}
	if g.cfg.Ordered && g.out.took() {
		// What this channel returns goes to the next consumer, which may be a worker of this loop that is about to stop.
		g.waitNeighbours(1)
	}
	_, err := call(g, func() (struct{}, error) {
		g.out.thaw()
		return struct{}{}, g.ch.Close()
	})
	if err != nil {
		return g.failed(ctx, err)
	}
	return then
}

// waitIdle waits for the worker goroutine, and on its behalf for a loss of the channel.
func (g *generation) waitIdle() error {
	for {
		select {
		case <-g.idle:
			return nil
		case <-g.ended: // all that was still alive; what it left is swept afterwards
		case e := <-g.closed:
			return lossError(e)
		case _, ok := <-g.cancels:
			if ok {
				return g.cancelledByBroker()
			}
			g.cancels = nil
		case <-g.hard:
			return fmt.Errorf("handler abandoned: %w", errGrace)
		}
	}
}

// failed turns the error of a call into why the generation ends.
func (g *generation) failed(ctx context.Context, err error) error {
	if errors.Is(err, errHung) {
		if ctx.Err() != nil {
			g.w.unproven = fmt.Errorf("%q: channel not closed in time, what was finished on it may come again: %w", g.w.name, err)
		}
		return err
	}
	if g.ch.IsClosed() && errors.Is(err, amqp.ErrClosed) {
		return g.lost(ctx) // knows more
	}
	// A channel on which a call failed is lost, too: what it answers next may be the answer to something else. Closing it this way
	// costs the connection when a delivery comes meanwhile: the driver takes that for an error of the broker.
	_, _ = call(g, func() (struct{}, error) { return struct{}{}, g.ch.Close() })
	return err
}

// lost returns why the channel is gone. The driver marks it closed a moment before it says why.
func (g *generation) lost(ctx context.Context) error {
	t := time.NewTimer(time.Second)
	defer t.Stop()
	var why *amqp.Error
	select {
	case why = <-g.closed:
	case <-t.C:
		select {
		case why = <-g.closed: // the machine was busy: both were there
		default:
		}
	}
	if why != nil {
		return lossError(why)
	}
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("channel lost: %w", cause)
	}
	return lossError(nil)
}

func lossError(e *amqp.Error) error {
	if e == nil {
		e = amqp.ErrClosed
	}
	return fmt.Errorf("channel lost: %w", e)
}

// cancelledByBroker closes the channel: on RabbitMQ 4.3 a late ack would have the broker send more to a consumer that is no longer there, so
// nothing may be settled on it.
func (g *generation) cancelledByBroker() error {
	g.out.kill()
	g.end(errCancelled)
	g.leave()
	_, _ = call(g, func() (struct{}, error) { return struct{}{}, g.ch.Close() })
	return errCancelled
}

// adopt counts the worker goroutine as an orphan until it ends.
func (w *worker) adopt(idle <-chan struct{}) {
	select {
	case <-idle:
		return
	default:
	}
	w.orphans.add()
	w.loop.orphans.add()
	go func() {
		<-idle
		w.orphans.done()
		w.loop.orphans.done()
	}()
}

// waitOrphans keeps a worker from consuming while handlers of its lost channels run: in order, none may; else one, so that a
// handler which ignores its context does not stop the worker, and a second one does.
func (w *worker) waitOrphans(ctx context.Context) error {
	limit := 1
	if w.loop.cfg.Ordered {
		limit = 0
	}
	n, _ := w.orphans.state()
	if n <= limit {
		return nil
	}
	// A handler that ends with its context is gone in a moment: that is no state to show.
	t := time.NewTimer(100 * time.Millisecond)
	defer t.Stop()
	if _, ok := w.orphans.atMost(limit, ctx.Done(), t.C); ok {
		return nil
	}
	report.State(ctx, report.Waiting, fmt.Sprintf("%d handlers of lost channels are still running: they ignore their context", n))
	if _, ok := w.orphans.atMost(limit, ctx.Done(), nil); !ok {
		return context.Cause(ctx)
	}
	return nil
}
