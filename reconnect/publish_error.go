package reconnect

import (
	"context"
	"errors"
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// publishError says which publish failed and why. Its parts stay reachable for errors.Is and errors.As.
type publishError struct {
	exchange, key string
	id            string // the MessageId; "": bad input that had none
	parts         []error
	ownFault      bool // the *amqp.Error among parts is about this very message, not about a neighbour on its channel
}

func (e *publishError) Error() string {
	var b strings.Builder
	b.WriteString("reconnect: " + publishTo(e.exchange, e.key, e.id))
	sep := ": "
	for _, part := range e.parts {
		b.WriteString(sep + strings.TrimPrefix(part.Error(), "reconnect: "))
		sep = "; "
	}
	return b.String()
}

// publishTo says what was to be published, and where.
func publishTo(exchange, key, id string) string {
	text := fmt.Sprintf("publish to queue %q", key)
	switch {
	case exchange != "" && key != "":
		text = fmt.Sprintf("publish to exchange %q with key %q", exchange, key)
	case exchange != "":
		text = fmt.Sprintf("publish to exchange %q", exchange)
	}
	if id != "" {
		text += fmt.Sprintf(": message %q", id)
	}
	return text
}

// Unwrap returns what the error is made of.
func (e *publishError) Unwrap() []error { return e.parts }

// Permanent reports that sending the message again is of no use: it is bad input, or the broker closed the channel over
// what is in it (406).
func (e *publishError) Permanent() bool {
	for _, part := range e.parts {
		if isPermanent(part) || e.ownFault && amqpCode(part) == amqp.PreconditionFailed {
			return true
		}
	}
	return false
}

// fail wraps the reasons why m was not confirmed. A *ReturnedError alone says everything itself.
func (m *Message) fail(parts ...error) error {
	if len(parts) == 1 {
		if returned, ok := parts[0].(*ReturnedError); ok {
			return returned
		}
	}
	return m.fault(parts...)
}

func (m *Message) fault(parts ...error) *publishError {
	return &publishError{exchange: m.Exchange, key: m.Key, id: m.MessageId, parts: parts}
}

// errTooLate is the cause of a publish that ended because its configuration says so, not its caller's context.
func errTooLate(field string, after fmt.Stringer) error {
	return fmt.Errorf("PublisherConfig.%s of %v has passed", field, after)
}

// errStopped ends the messages of a batch that were not sent, or not again, when their caller stopped.
var errStopped = fmt.Errorf("not sent: its caller stops: %w", context.Canceled)

// errNotSent ends the messages of a batch that come after the one over which it ended.
var errNotSent = errors.New("not sent: the batch ended before its turn")
