package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/codec"
)

var (
	// ErrNoServer is returned at once by a call for which no request queue was there: nobody serves it, or has ever. Nothing
	// was executed. A queue without a server at the moment is another matter: the call waits, until its deadline.
	ErrNoServer = errors.New("rpc: no server")

	// ErrBadReply is returned by a call whose answer cannot be read: JSON that does not fit, an error without a code. The
	// request was executed.
	ErrBadReply = errors.New("rpc: reply cannot be read")
)

// Codes of a RemoteError that are the library's own.
const (
	codeError      = "error"       // the handler returned an error that ServerConfig.ErrorCode does not name
	codePanic      = "panic"       // the handler panicked
	codeBadRequest = "bad-request" // the request could not be decoded, or is too large
)

// RemoteError is an error that the server answered with. The code says what the caller may do about it: "error", "panic"
// and "bad-request" are the library's, others those of ServerConfig.ErrorCode, or of a RemoteError that the handler itself
// returned. Message is the server's text and not to be trusted with a terminal; Details is what the handler put there. Of a
// code 255 bytes are sent, of a message 16 KiB.
type RemoteError struct {
	Code    string
	Message string
	Details []byte
}

func (e *RemoteError) Error() string { return fmt.Sprintf("remote error %q: %q", e.Code, e.Message) }

// maxCode and maxText bound the code and the message of an error that is sent, so that it always can be.
const (
	maxCode = 255
	maxText = 16 << 10
)

// errorReply is the answer that carries e.
func errorReply(e *RemoteError) amqp.Publishing {
	code, message := e.Code[:min(len(e.Code), maxCode)], e.Message[:min(len(e.Message), maxText)]
	body, err := json.Marshal(remoteError{Code: code, Message: message, Details: e.Details})
	if err != nil {
		panic(err) // strings and bytes can always be encoded
	}
	return amqp.Publishing{
		ContentType: contentJSON,
		Headers:     amqp.Table{headerKind: kindError},
		Body:        body,
	}
}

// replyError returns the error that a reply stands for, nil when it is a plain answer.
func replyError(d *amqp.Delivery) error {
	switch kind := kindOf(d.Headers); kind {
	case "":
		return nil
	case kindUnknown:
		return errServerLost
	case kindRefused:
		return errHandedBack
	case kindError:
		e, err := codec.JSON[remoteError](d.Body)
		if err != nil {
			return fmt.Errorf("%w: an error that is none: %w", ErrBadReply, err)
		}
		if e.Code == "" {
			return fmt.Errorf("%w: an error without a code", ErrBadReply)
		}
		return &RemoteError{Code: e.Code, Message: e.Message, Details: e.Details}
	default:
		return fmt.Errorf("%w: of kind %q", ErrBadReply, kind)
	}
}

// ended returns the error of a context that is done, with its cause when that says more.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == nil || errors.Is(cause, err) {
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}

func isNotNow(err error) bool {
	var n interface{ NotNow() bool }
	return errors.As(err, &n) && n.NotNow()
}

func isPermanent(err error) bool {
	var p interface{ Permanent() bool }
	return errors.As(err, &p) && p.Permanent()
}
