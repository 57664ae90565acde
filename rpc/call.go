package rpc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/prefix"
	"github.com/warrenmq/warren/internal/telemetry"
	"github.com/warrenmq/warren/internal/wire"
	"github.com/warrenmq/warren/reconnect"
)

// call is one call. It is used again for others: nothing may hold on to it that has not been in generation.calls, and what
// takes it from there sends to done exactly once.
type call struct {
	id      string
	key     string
	body    []byte
	confirm atomic.Pointer[amqp.DeferredConfirmation] // nil: not sent yet, or known to have arrived
	server  string                                    // takes a cancel; under the generation's mu

	done  chan struct{}        // capacity 1
	reply amqp.Delivery        // read after done
	out   outcome              // read after done
	timer *time.Timer          // stopped
	tale  telemetry.Publishing // what is told of it
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
	d, err := c.call(ctx, k, queue, req)
	k.tell(err)
	k.body, k.reply, k.out, k.tale = nil, amqp.Delivery{}, outcome{}, telemetry.Publishing{}
	c.core.pool.Put(k)
	if err != nil {
		return amqp.Delivery{}, callFailed(queue, err)
	}
	return d, nil
}

func (c *Client) call(ctx context.Context, k *call, queue string, req amqp.Publishing) (amqp.Delivery, error) {
	r, err := c.request(ctx, k, queue, req)
	if err != nil {
		return amqp.Delivery{}, err
	}
	l := c.core.lineTo(queue, r.now)
	d, err := c.exchange(ctx, l, k, &r)
	if l.confirms {
		c.learn(queue, &d, err)
	}
	switch {
	case err == nil:
		err = replyError(&d)
	case r.doubt != nil && !errors.Is(err, reconnect.ErrUnknown):
		err = fmt.Errorf("%w; an earlier attempt: %w", err, r.doubt)
	}
	return d, err
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

func callFailed(queue string, err error) error {
	return prefix.Wrap(fmt.Sprintf("rpc: call %q", queue), err, "rpc: ")
}

// request completes req and checks it.
func (c *Client) request(ctx context.Context, k *call, queue string, req amqp.Publishing) (request, error) {
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
	k.tale = c.core.tell.Publish(ctx, r.exchange, r.key, r.msg.Headers)
	switch {
	case ctx.Err() != nil:
		return r, ended(ctx)
	case queue == "" && r.exchange == "":
		return r, errNoQueue
	}
	if err := c.validate(&r); err != nil {
		return r, err
	}
	c.describe(&r, &k.tale)
	return r, nil
}

var errNoQueue = errors.New("queue: empty")

func (c *Client) validate(r *request) error {
	return wire.Publishing(r.exchange, r.key, &r.msg, wire.Limits{MaxBody: c.core.conn.Config().MaxBody, DirectReply: true, NoReplies: true})
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
