package consume

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// handlerContext is the context of a generation's handlers: it ends at the loss of the channel, or with a shutdown's grace period.
type handlerContext = context.Context

// handle has what is in hand handled, as often as it takes, and settled. since is the earliest time it can have been delivered.
func (g *generation) handle(base handlerContext, s *spell, since time.Time) why {
	var bound time.Time
	if keep := g.cfg.keep(); keep > 0 {
		bound = since.Add(keep)
	}
	for try := 1; ; try++ {
		if end := g.admit(base, s, bound); end != goOn {
			return g.giveBack(end)
		}
		passed, stays := g.attempt(base)
		refused := g.answer(passed, stays)
		if passed {
			g.waitsNoMore(base, s)
		}
		if len(g.hand) == 0 {
			return goOn
		}
		if stays == nil {
			continue // the rest of a batch was not tried
		}
		if end := g.wait(base, s, bound, stays, try, refused); end != goOn {
			return g.giveBack(end)
		}
	}
}

// attempt calls the handler, or what dead-letters, once for what is in hand, and settles by the answer. What is done with leaves the
// hand; stays is the error of what is left. passed says that the handler succeeded with a message.
func (g *generation) attempt(base handlerContext) (passed bool, stays error) {
	var deadline time.Time
	if g.cfg.HandlerTimeout > 0 {
		deadline = time.Now().Add(g.cfg.HandlerTimeout)
	}
	if g.cfg.Stamp {
		base = context.WithValue(base, stampKey{}, g.hand[0].at)
	}
	if g.cfg.Batch != nil {
		return g.attemptBatch(base, deadline)
	}
	it := &g.hand[0]
	if it.cause == nil {
		passed, stays = g.attemptOne(base, deadline, it)
	} else {
		ctx := newCallCtx(base, deadline)
		defer ctx.end()
		_, stays = g.settle(ctx, base, it, nil)
	}
	if stays == nil {
		g.drop()
	}
	return passed, stays
}

// attemptOne calls the handler with it and settles by its answer.
func (g *generation) attemptOne(base handlerContext, deadline time.Time, it *item) (passed bool, stays error) {
	within, tale := g.loop.tell.Process(base, &it.d)
	ctx := newCallCtx(within, deadline)
	defer ctx.end()
	kind, err := errorTypeGoexit, error(nil)
	defer func() { tale.End(kind, err) }()
	err = g.invoke(ctx, it.d)
	if kind = ""; tale.Told() {
		kind = errorType(ctx, err)
		tale.Returned(kind)
	}
	return g.settle(ctx, base, it, err)
}

// settle settles it by err, its handler's answer. stays is not nil when the message stays in hand.
func (g *generation) settle(ctx context.Context, base handlerContext, it *item, err error) (passed bool, stays error) {
	if g.out.dead() {
		g.loop.countStale(1)
		g.logStale(it)
		return false, nil
	}
	if it.cause == nil {
		switch judge(err, base.Err() != nil) {
		case acked:
			g.acked(it)
			return true, nil
		case later:
			g.loop.notNow.Add(1)
			return false, err
		case backed:
			it.tried = true
			return false, err
		}
		it.cause = g.timedOut(ctx, err)
	}
	return false, g.bury(ctx, it)
}

func (g *generation) acked(it *item) {
	g.ripen()
	if !g.out.done(it.d.DeliveryTag) {
		g.logStale(it)
		return
	}
	g.loop.countHandled()
}

// ripen counts a message that is about to be settled, for the slow start. When the prefetch may grow, acknowledgements are
// withheld until the consumer has been replaced, this message's first of all.
func (g *generation) ripen() {
	if s := g.serving; g.cfg.SlowStart && s.ripe(g.cfg.Prefetch) {
		g.out.freeze(func() {
			select {
			case g.grow <- s:
			default: // it is not waited for: the generation ends
			}
		})
	}
}

// bury dead-letters it. It returns an error when the copy could not be stored: the message stays then.
func (g *generation) bury(ctx context.Context, it *item) (stays error) {
	sent := false
	if g.cfg.DeadLetter == nil {
		g.ripen()
		sent = g.out.reject(it.d.DeliveryTag)
	} else {
		err := g.guard(func() error { return g.cfg.DeadLetter(ctx, it.d, it.cause) })
		switch {
		case err == nil:
			g.ripen()
			sent = g.out.done(it.d.DeliveryTag)
		case errors.Is(err, ErrNoCopy):
			g.log.Warn("left to the broker's own dead-lettering, which may lose it", "message", it.d.MessageId, "error", err)
			g.ripen()
			sent = g.out.reject(it.d.DeliveryTag)
		default:
			g.loop.notNow.Add(1)
			return &unburied{err}
		}
	}
	if !sent {
		g.logStale(it)
		return nil
	}
	g.loop.countFailed()
	g.logFailed(it)
	return nil
}

// unburied is the "not now" of a dead-letter copy that was not confirmed.
type unburied struct{ err error }

func (e *unburied) Error() string { return "dead-letter copy not stored: " + e.err.Error() }
func (e *unburied) Unwrap() error { return e.err }
func (e *unburied) NotNow() bool  { return true }

// logFailed writes a line for a message, and one for all of a batch that failed as a whole.
func (g *generation) logFailed(it *item) {
	attrs := []any{"message", it.d.MessageId, "error", it.cause}
	if whole, ok := it.cause.(*wholeBatch); ok {
		if whole.logged {
			return
		}
		whole.logged = true
		attrs = append(attrs, "messages", whole.messages)
	}
	var p *panicError
	if errors.As(it.cause, &p) {
		g.loop.panics.Add(1)
		attrs = append(attrs, "stack", string(p.stack))
	}
	g.log.Error("message dead-lettered", attrs...)
}

// timedOut adds to the error of a handler whose time was up that it was.
func (g *generation) timedOut(ctx context.Context, err error) error {
	if g.cfg.HandlerTimeout <= 0 || !errors.Is(err, context.DeadlineExceeded) || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("%w (HandlerTimeout of %v has passed)", err, g.cfg.HandlerTimeout)
}

func (g *generation) logStale(it *item) {
	g.log.Warn("a handler finished after its channel was lost; its message comes again", "message", it.d.MessageId)
}

// invoke calls the handler.
func (g *generation) invoke(ctx context.Context, d amqp.Delivery) (err error) {
	defer recovered(&err)
	return g.cfg.Handler(ctx, d)
}

// guard calls fn.
func (g *generation) guard(fn func() error) (err error) {
	defer recovered(&err)
	return fn()
}

// recovered, deferred, makes an error of a panic.
func recovered(err *error) {
	if v := recover(); v != nil {
		*err = &panicError{v, debug.Stack()}
	}
}

// buryHand rejects what was in hand when a handler ended the goroutine.
func (g *generation) buryHand() {
	g.stepBack()
	for i := range g.hand {
		it := &g.hand[i]
		if it.cause == nil {
			it.cause = errGoexit
		}
		if g.out.reject(it.d.DeliveryTag) {
			g.loop.countFailed()
			g.logFailed(it)
		} else {
			g.logStale(it)
		}
	}
	g.drop()
}
