package rpc

import (
	"context"
	"errors"
	"maps"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/wire"
	"github.com/warrenmq/warren/reconnect"
)

// answerer sends the answer of one request.
type answerer struct {
	server   *Server
	ctx      context.Context // does not end with the handler's
	d        *amqp.Delivery
	direct   bool // to a channel's address
	deadline time.Time
}

// fail answers with e; without its details when they are more than can be sent.
func (a *answerer) fail(e *RemoteError) {
	msg := errorReply(e)
	if limit := a.server.limits.MaxBody; limit > 0 && len(msg.Body) > limit {
		short := *e
		short.Details = nil
		msg = errorReply(&short)
	}
	a.mark(&msg)
	a.publish(msg)
}

// mark says in an answer, of whatever kind, that the queue has a limit.
func (a *answerer) mark(msg *amqp.Publishing) {
	if a.server.cfg.MaxLength <= 0 {
		return
	}
	t := make(amqp.Table, len(msg.Headers)+1)
	maps.Copy(t, msg.Headers)
	t[headerLimited], msg.Headers = true, t
}

// send answers with msg, or with what is wrong with it. A header by which an error is told is the library's.
func (a *answerer) send(msg amqp.Publishing) {
	if kind, forged := msg.Headers[headerKind]; forged && kind != kindUnknown {
		msg.Headers = maps.Clone(msg.Headers)
		delete(msg.Headers, headerKind)
	}
	msg.CorrelationId = a.d.CorrelationId
	a.mark(&msg)
	if err := wire.Publishing("", a.d.ReplyTo, &msg, a.server.limits); err != nil {
		a.server.log.Error("an answer cannot be sent", "message", a.d.MessageId, "error", err)
		a.fail(&RemoteError{Code: codeError, Message: "the answer cannot be sent: " + err.Error()})
		return
	}
	a.publish(msg)
}

// busyPause is how long to wait when the publisher has too much to do.
const busyPause = 10 * time.Millisecond

// publish sends msg and waits until the broker has it, as long as somebody waits for it.
func (a *answerer) publish(msg amqp.Publishing) {
	msg.CorrelationId = a.d.CorrelationId
	s, pub := a.server, a.server.queues
	if a.direct {
		pub = s.direct
	}
	ctx, cancel := context.WithDeadline(a.ctx, a.deadline)
	defer cancel()
	if a.direct {
		s.young.settle(ctx)
	}
	for {
		err := pub.Publish(ctx, "", a.d.ReplyTo, msg)
		var returned *reconnect.ReturnedError
		switch {
		case err == nil:
		case errors.Is(err, reconnect.ErrBusy) && sleep(ctx, busyPause):
			continue
		case errors.As(err, &returned): // the queue is gone, and with it who waited
			s.unanswered.Add(1)
		case ctx.Err() != nil: // nobody waits any more
			s.unanswered.Add(1)
		default:
			s.unanswered.Add(1)
			s.log.Error("an answer was not sent", "message", a.d.MessageId, "error", err)
		}
		return
	}
}

// sleep returns false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
