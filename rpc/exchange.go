package rpc

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/report"
	"github.com/warrenmq/warren/reconnect"
)

// errGone says that a generation ended before a request was sent on it: it may be sent on the next.
var errGone = errors.New("channel lost")

// exchange sends the request and waits for the answer, on one channel or, where that may be, on several in turn.
func (c *Client) exchange(ctx context.Context, l *line, k *call, r *request) (amqp.Delivery, error) {
	for {
		g, err := c.ready(ctx, l, r)
		if err == nil {
			k.attempt()
			err = g.send(ctx, k, r)
		}
		if err == errGone {
			continue // nothing was sent
		}
		if err != nil {
			return amqp.Delivery{}, err
		}
		if k.out.err == nil {
			return k.reply, nil
		}
		if !k.out.lost || !c.idempotent {
			return amqp.Delivery{}, k.out.err
		}
		r.doubt = k.out.err
		k.tale.Again(r.doubt)
	}
}

// ready returns a channel on which the request may be sent now. What a call usually needs is there, and is not waited
// for: a context that holds the end would cost more than all the rest.
func (c *Client) ready(ctx context.Context, l *line, r *request) (*generation, error) {
	if g := l.current.Load(); g != nil && g.sender.Free(r.exchange, r.key, r.msg.Body) {
		return g, nil
	}
	if err := c.core.missing(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithDeadlineCause(ctx, r.end, c.timeUp(r))
	defer cancel()
	for {
		g, err := l.generation(ctx)
		if err != nil {
			return nil, err
		}
		err = g.sender.Wait(ctx, r.exchange, r.key, r.msg.Body)
		var refusal *amqp.Error
		switch {
		case err == nil:
			return g, nil
		case ctx.Err() != nil:
			return nil, withBlocked(ended(ctx), err)
		case errors.As(err, &refusal) && refusal.Server && !errors.Is(err, report.ErrGone):
			err = refusedWith(refusal)
			if refusal.Code == amqp.NotFound {
				c.core.absent.Store(&absence{err, time.Now().Add(askAgain)})
			}
			return nil, err
		case !errors.Is(err, report.ErrGone):
			return nil, err
		}
		select {
		case <-g.over:
		case <-ctx.Done():
		}
	}
}

// timeUp is the cause of an end that the caller did not set, nil otherwise.
func (c *Client) timeUp(r *request) error {
	if r.bounded {
		return nil
	}
	return fmt.Errorf("ClientConfig.Timeout of %v has passed", c.core.cfg.Timeout)
}

// withBlocked returns err, and that an alarm was why, if why says so.
func withBlocked(err, why error) error {
	if errors.Is(why, reconnect.ErrBlocked) {
		return fmt.Errorf("%w; %w", err, reconnect.ErrBlocked)
	}
	return err
}

// send sends the request on g and waits for the end of the call, which k then tells. Its error is that of a call that
// nothing has answered: errGone when nothing was sent because g has ended.
func (g *generation) send(ctx context.Context, k *call, r *request) error {
	left := time.Until(r.end)
	if ctx.Err() != nil || left <= 0 {
		return g.core.tooLate(ctx, r)
	}
	r.msg.Expiration = g.core.expirations.of(left)
	if err := g.add(k); err != nil {
		return g.refuse(err)
	}
	confirm, err := g.ch.PublishWithDeferredConfirm(r.exchange, r.key, true, false, r.msg)
	if err != nil {
		return g.notSent(k, err)
	}
	k.confirm.Store(confirm)
	return g.await(ctx, k, r)
}

// refuse returns the error of a call that g did not let in.
func (g *generation) refuse(why error) error {
	if why == errGone {
		<-g.over // imminent; then there is another, or the wait for one
	}
	return why
}

// notSent ends a call whose request the driver did not take.
func (g *generation) notSent(k *call, err error) error {
	if !g.remove(k) {
		<-k.done // together with its generation
		return errGone
	}
	if g.ch.IsClosed() || errors.Is(err, amqp.ErrClosed) { // a connection that closes is closed a moment before its channels
		<-g.over
		return errGone
	}
	return err
}

// await waits for the end of the call.
func (g *generation) await(ctx context.Context, k *call, r *request) error {
	var timeUp <-chan time.Time
	if !r.bounded {
		k.timer.Reset(time.Until(r.end))
		defer k.timer.Stop()
		timeUp = k.timer.C
	}
	select {
	case <-k.done:
		return nil
	case <-ctx.Done():
	case <-timeUp:
	}
	if !g.remove(k) {
		<-k.done // it has just come
		return nil
	}
	if g.core.cfg.NotifyCancel && ctx.Err() == context.Canceled {
		g.cancel(k)
	}
	err := fmt.Errorf("%w; %w", g.core.tooLate(ctx, r), reconnect.ErrUnknown)
	if !g.sender.Free(r.exchange, r.key, nil) {
		err = withBlocked(err, g.core.blocked())
	}
	return err
}

// tooLate is the error of a call whose time is over.
func (c *core) tooLate(ctx context.Context, r *request) error {
	switch {
	case ctx.Err() != nil:
		return ended(ctx)
	case r.bounded:
		return context.DeadlineExceeded // the context is about to say so
	}
	return fmt.Errorf("%w: ClientConfig.Timeout of %v has passed", context.DeadlineExceeded, c.cfg.Timeout)
}
