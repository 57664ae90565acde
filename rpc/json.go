package rpc

import (
	"context"
	"encoding/json"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/codec"
)

const contentJSON = "application/json"

// Call is Client.Call with JSON both ways: req is encoded, the answer decoded into a Resp. A req that cannot be encoded is
// a permanent error, and nothing is sent. An answer that is empty, is null where Resp has no nil, has something behind the
// value, or does not fit, is ErrBadReply; for a server that answers nothing take Client.Call.
func Call[Resp any](ctx context.Context, c *Client, queue string, req any) (Resp, error) {
	var none Resp
	body, err := json.Marshal(req)
	if err != nil {
		return none, callFailed(queue, codec.Permanent(err))
	}
	d, err := c.Call(ctx, queue, amqp.Publishing{ContentType: contentJSON, Body: body})
	if err != nil {
		return none, err
	}
	resp, err := codec.JSON[Resp](d.Body)
	if err != nil {
		return none, callFailed(queue, fmt.Errorf("%w: %w", ErrBadReply, err))
	}
	return resp, nil
}

// JSON returns a Handler that decodes the request into a Req, hands it to h, and answers with what that returns. A body
// that is empty, is null where Req has no nil, has something behind the value, or does not fit Req, is answered with a
// RemoteError of code "bad-request". A handler that needs more of the delivery, such as its MessageId, is a Handler that
// decodes the body itself.
func JSON[Req, Resp any](h func(ctx context.Context, req Req) (Resp, error)) Handler {
	if h == nil {
		return nil // which NewServer refuses
	}
	return func(ctx context.Context, d amqp.Delivery) (amqp.Publishing, error) {
		req, err := codec.JSON[Req](d.Body)
		if err != nil {
			return amqp.Publishing{}, &RemoteError{Code: codeBadRequest, Message: err.Error()}
		}
		resp, err := h(ctx, req)
		if err != nil {
			return amqp.Publishing{}, err
		}
		body, err := json.Marshal(resp)
		if err != nil {
			return amqp.Publishing{}, fmt.Errorf("rpc: encode the answer: %w", err)
		}
		return amqp.Publishing{ContentType: contentJSON, Body: body}, nil
	}
}
