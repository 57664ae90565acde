package rpc

import (
	"context"
	"errors"
	"strconv"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/telemetry"
	"github.com/warrenmq/warren/reconnect"
)

// describe gives the request the trace context, unless that would make it too large, and tells what it is.
func (c *Client) describe(r *request, tale *telemetry.Publishing) {
	own := r.msg.Headers
	if tale.Inject(&r.msg) && c.validate(r) != nil {
		r.msg.Headers = own
	}
	tale.Describe(&r.msg)
}

// tell ends the tale of a call; its request's headers are not used after that.
func (k *call) tell(err error) {
	if !k.tale.Told() {
		k.tale.End("", nil, false)
		return
	}
	word, sent := errorType(err)
	k.tale.End(word, err, sent)
}

// errorType returns a word for the outcome of a call, out of few, and whether the request was sent.
func errorType(err error) (word string, sent bool) {
	if err == nil {
		return "", true
	}
	var (
		remote  *RemoteError
		refusal *amqp.Error
		unknown = errors.Is(err, reconnect.ErrUnknown)
	)
	switch {
	case errors.As(err, &remote):
		return "remote", true
	case errors.Is(err, ErrBadReply):
		return "bad_reply", true
	case errors.Is(err, ErrNoServer):
		var returned *reconnect.ReturnedError
		return "no_server", unknown || errors.As(err, &returned)
	case errors.Is(err, reconnect.ErrBlocked):
		return "blocked", unknown
	case errors.Is(err, context.Canceled):
		return "canceled", unknown
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout", unknown
	case unknown:
		return "unknown", true
	case errors.Is(err, reconnect.ErrRefused):
		return "refused", true
	case errors.Is(err, reconnect.ErrClosed):
		return "closed", false
	case errors.As(err, &refusal):
		return "amqp_" + strconv.Itoa(refusal.Code), true
	case isPermanent(err), errors.Is(err, errNoQueue):
		return "invalid", false
	}
	return "other", false
}

// answeredWith returns a word for the error that a handler has answered with, out of few.
func answeredWith(ctx context.Context, told *RemoteError, err error) string {
	switch {
	case told.Code == codePanic:
		return "panic"
	case errors.Is(err, context.DeadlineExceeded) && errors.Is(ctx.Err(), context.DeadlineExceeded):
		return "timeout"
	}
	return "error"
}
