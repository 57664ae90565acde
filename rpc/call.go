package rpc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/report"
	"github.com/warrenmq/warren/internal/wire"
	"github.com/warrenmq/warren/reconnect"
)

// errGone says that a generation ended before a request was sent on it: it may be sent on the next.
var errGone = errors.New("channel lost")

// call is one call. It is used again for others: nothing may hold on to it that has not been in generation.calls, and what
// takes it from there sends to done exactly once.
type call struct {
	id      string
	key     string
	body    []byte
	confirm atomic.Pointer[amqp.DeferredConfirmation] // nil: not sent yet, or known to have arrived
	server  string                                    // takes a cancel; under the generation's mu

	done  chan struct{} // capacity 1
	reply amqp.Delivery // read after done
	out   outcome       // read after done
	timer *time.Timer   // stopped
}

// outcome is how a call ended without a reply: err is not nil then. lost says that another channel may do better.
type outcome struct {
	err  error
	lost bool
}

func newCall() *call {
	k := &call{done: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
	k.timer.Stop()
	return k
}

// end ends a call that was taken out of its generation.
func (k *call) end(out outcome) {
	k.out = out
	k.done <- struct{}{}
}

// attempt readies k for another channel.
func (k *call) attempt() {
	k.confirm.Store(nil)
	k.server, k.reply, k.out = "", amqp.Delivery{}, outcome{}
}

// request is what is to be sent, and until when somebody waits.
type request struct {
	exchange, key string
	msg           amqp.Publishing
	now, end      time.Time
	bounded       bool // by the context itself
	doubt         error
}

// Call sends req to queue (with ClientConfig.Exchange: with this routing key to the exchange) and waits for the answer, at
// most until ctx ends; one without a deadline gets ClientConfig.Timeout. The server gets what is left of that time with
// the request, and lets it pass unhandled when it is over. req gets a MessageId, a UUIDv7, when it has none;
// CorrelationId, ReplyTo and Expiration are Call's own. It waits for a link, and for the end of an alarm. The answer is
// acknowledged already.
//
// The error, otherwise, tells what became of the call:
//   - ErrNoServer, at once: the queue, or the exchange, is not there; a *reconnect.ReturnedError or *amqp.Error says more;
//   - *RemoteError: the server answered with an error;
//   - ErrBadReply: the server answered with what cannot be read;
//   - the context's error (context.DeadlineExceeded also for Timeout), joined with reconnect.ErrUnknown if the request had
//     been sent, and with reconnect.ErrBlocked during an alarm;
//   - reconnect.ErrUnknown: it may have been executed. The link was lost, which ends all pending calls at once, or
//     the server that had the request died;
//   - reconnect.ErrRefused: the queue is full; *amqp.Error with code 403 or 406: the broker does not take it from this
//     user, or of this size; reconnect.ErrClosed, bad input: it was never sent.
//
// Only with reconnect.ErrUnknown may the request have been executed, or be executed yet. An Idempotent client sends it
// again instead when the link was lost.
func (c *Client) Call(ctx context.Context, queue string, req amqp.Publishing) (amqp.Delivery, error) {
	k := c.core.pool.Get().(*call)
	r, err := c.request(ctx, k, queue, req)
	if err != nil {
		c.core.pool.Put(k)
		return amqp.Delivery{}, callFailed(queue, err)
	}
	l := c.core.lineTo(queue, r.now)
	d, err := c.exchange(ctx, l, k, &r)
	if l.confirms {
		c.learn(queue, &d, err)
	}
	k.body, k.reply, k.out = nil, amqp.Delivery{}, outcome{}
	c.core.pool.Put(k)
	switch {
	case err == nil:
		err = replyError(&d)
	case r.doubt != nil && !errors.Is(err, reconnect.ErrUnknown):
		err = fmt.Errorf("%w; an earlier attempt: %w", err, r.doubt)
	}
	if err != nil {
		return amqp.Delivery{}, callFailed(queue, err)
	}
	return d, nil
}

// learn learns from a call with confirmations how others to that key may go.
func (c *Client) learn(key string, d *amqp.Delivery, err error) {
	switch {
	case err == nil:
		c.core.routes.answered(key, d.Headers[headerLimited] == true, time.Now())
	case errors.Is(err, reconnect.ErrRefused):
		c.core.routes.refused(key, time.Now())
	}
}

func callFailed(queue string, err error) error { return fmt.Errorf("rpc: call %q: %w", queue, err) }

// request completes req and checks it.
func (c *Client) request(ctx context.Context, k *call, queue string, req amqp.Publishing) (request, error) {
	if ctx.Err() != nil {
		return request{}, ended(ctx)
	}
	now := time.Now()
	r := request{exchange: c.core.cfg.Exchange, key: queue, msg: req, now: now}
	if r.end, r.bounded = ctx.Deadline(); !r.bounded {
		r.end = now.Add(c.core.cfg.Timeout)
	}
	id := c.core.ids.next(now)
	k.id, k.key, k.body = id[randomPart:], queue, req.Body
	r.msg.CorrelationId, r.msg.ReplyTo, r.msg.Expiration = k.id, directReply, ""
	if r.msg.MessageId == "" {
		r.msg.MessageId = id
	}
	if r.msg.DeliveryMode == 0 {
		r.msg.DeliveryMode = amqp.Transient
		if c.core.cfg.Persistent {
			r.msg.DeliveryMode = amqp.Persistent
		}
	}
	c.addHeaders(&r, r.end.Sub(now))
	if queue == "" && r.exchange == "" {
		return r, errors.New("queue: empty")
	}
	return r, wire.Publishing(r.exchange, r.key, &r.msg, wire.Limits{MaxBody: c.core.conn.Config().MaxBody, DirectReply: true})
}

// addHeaders puts together what the request, the Client and Call itself have for headers. Nobody else's table is changed.
func (c *Client) addHeaders(r *request, left time.Duration) {
	own, notify, long := r.msg.Headers, c.core.cfg.NotifyCancel, left > clockSkew
	if len(own) == 0 && len(c.headers) == 0 && !c.idempotent && !notify && !long {
		r.msg.Headers = nil
		return
	}
	t := make(amqp.Table, len(own)+len(c.headers)+3)
	maps.Copy(t, c.headers)
	maps.Copy(t, own)
	delete(t, headerIdempotent)
	delete(t, headerKind)
	delete(t, headerDeadline)
	if long {
		t[headerDeadline] = r.end.UnixMilli()
	}
	if c.idempotent {
		t[headerIdempotent] = true
	}
	if notify {
		t[headerKind] = kindCancellable
	}
	r.msg.Headers = t
}

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
