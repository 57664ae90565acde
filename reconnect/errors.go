package reconnect

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/prefix"
)

var (
	// ErrUnknown is returned, joined with its cause, by a publish whose message was handed to the link and whose
	// confirmation did not come: it may have arrived. Sending it again may duplicate it; with the same MessageId an
	// idempotent consumer sees through that.
	ErrUnknown = errors.New("reconnect: outcome unknown")

	// ErrRefused is returned by a publish that a queue refused (basic.nack): the queue is full with overflow
	// reject-publish, or failed inside. When the exchange leads to several queues the others may have taken it.
	ErrRefused = errors.New("reconnect: refused by a queue")

	// ErrBlocked is returned, joined with the context's error, by a publish that ended while the broker was blocking
	// publishers because of a memory or disk alarm. Without ErrUnknown beside it nothing was sent. Ping returns it, too.
	ErrBlocked = errors.New("reconnect: the broker blocks publishers (resource alarm)")

	// ErrBusy is returned at once, with nothing sent, by a publish that found MaxWaiting calls or MaxWaitingBytes waiting.
	ErrBusy = errors.New("reconnect: too many publishes waiting")

	// ErrClosed is returned by whatever is called on, or was running on, a Conn after its Close began.
	ErrClosed = errors.New("reconnect: closed")
)

// ReturnedError is returned by a publish whose message no queue took: the exchange has no binding for the key. The
// message is nowhere; sending it again duplicates nothing.
type ReturnedError struct {
	Exchange, Key, MessageID string
	Code                     uint16 // 312 NO_ROUTE
	Text                     string // the broker's words
}

func (e *ReturnedError) Error() string {
	return fmt.Sprintf("reconnect: %s: returned, no queue took it: %d %s", publishTo(e.Exchange, e.Key, e.MessageID), e.Code, e.Text)
}

// TopologyError says that an entity is not on the broker as it was described: another value of an argument exists (406),
// the right to declare it is missing (403), or two descriptions of one Conn contradict each other. Retrying does not
// help: it is permanent. Verify also returns it for what is missing (404), and for what RabbitMQ 4.3 refuses, which then
// has no existing value.
type TopologyError struct {
	Entity           string // `queue "images"`
	Argument         string // the argument or property that differs, when the broker names one; "right" for a missing right
	Wanted, Existing string // its two values as text
	Err              error  // the *amqp.Error, when the broker said it; otherwise, from Verify, why a later one will
}

func (e *TopologyError) Error() string {
	var b strings.Builder
	b.WriteString("reconnect: " + e.Entity)
	switch {
	case e.Argument == "":
	case isLint(e.Err):
		fmt.Fprintf(&b, ": %s: wanted %s", e.Argument, visible(e.Wanted))
	default:
		fmt.Fprintf(&b, ": %s: wanted %s, existing %s", e.Argument, visible(e.Wanted), visible(e.Existing))
	}
	if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	}
	return b.String()
}

// visible keeps an empty value from looking like none at all, and a terminal from obeying what others put into theirs.
func visible(value string) string {
	if value == "" || !utf8.ValidString(value) || strings.ContainsFunc(value, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(value)
	}
	return value
}

// Unwrap returns the broker's own error.
func (e *TopologyError) Unwrap() error { return e.Err }

// Permanent reports that trying again is of no use.
func (e *TopologyError) Permanent() bool { return true }

// BatchError is returned by PublishBatch when not every message was confirmed. It has one entry for each message of the
// batch, in its order: nil for one that was confirmed, otherwise what Publish would have returned for it.
type BatchError []error

func (e BatchError) Error() string {
	failed, first := 0, -1
	for i, err := range e {
		if err != nil {
			if first < 0 {
				first = i
			}
			failed++
		}
	}
	if first < 0 {
		return "reconnect: no message of the batch failed"
	}
	return prefix.Wrap(fmt.Sprintf("reconnect: %d of %d messages failed, the first of them number %d", failed, len(e), first), e[first]).Error()
}

// Unwrap returns the entries, nil ones included, so that errors.Is and errors.As look into each.
func (e BatchError) Unwrap() []error { return e }

// isPermanent reports whether an error in the chain says so by behaviour, whatever package it is from.
func isPermanent(err error) bool {
	var p interface{ Permanent() bool }
	return errors.As(err, &p) && p.Permanent()
}

// amqpCode returns the reply code of the broker's error in the chain, or 0.
func amqpCode(err error) int {
	var e *amqp.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

// ended returns the error of a context that is done, with its cause when that says more.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == nil || errors.Is(cause, err) {
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}
