package outbox

import (
	"context"
	"errors"
	"strings"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
)

// verdict is what becomes of a row after an attempt to send it.
type verdict int

const (
	sent     verdict = iota // confirmed: it is deleted
	failed                  // it costs an attempt
	hopeless                // it is parked
	open                    // not sent, or nobody knows: again, and before what comes after it
)

// judge returns the verdicts on n messages for which PublishBatch returned err, and what was said about each.
func judge(n int, err error) ([]verdict, []error) {
	verdicts, reasons := make([]verdict, n), make([]error, n)
	if err == nil {
		return verdicts, reasons
	}
	var each reconnect.BatchError
	if !errors.As(err, &each) || len(each) != n {
		for i := range verdicts {
			verdicts[i], reasons[i] = open, err
		}
		return verdicts, reasons
	}
	behind := false
	for i, entry := range each {
		verdicts[i], reasons[i] = judgeOne(entry, behind), entry
		behind = behind || verdicts[i] == open
	}
	return verdicts, reasons
}

// judgeOne judges one entry. behind says that there is an open one before it: then the batch may have ended there.
func judgeOne(err error, behind bool) verdict {
	switch {
	case err == nil:
		return sent
	case costsNothing(err):
		return open
	case isHopeless(err):
		return hopeless
	case behind && !isNamed(err):
		return open
	}
	return failed
}

func costsNothing(err error) bool {
	for _, target := range []error{reconnect.ErrUnknown, reconnect.ErrBlocked, reconnect.ErrBusy, reconnect.ErrClosed,
		context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// isNamed reports whether err says what was wrong with its message.
func isNamed(err error) bool {
	var returned *reconnect.ReturnedError
	var refused *amqp.Error
	return errors.As(err, &returned) || errors.As(err, &refused) || errors.Is(err, reconnect.ErrRefused) || retryAfter(err) > 0
}

func isHopeless(err error) bool {
	var p interface{ Permanent() bool }
	return errors.As(err, &p) && p.Permanent()
}

// retryAfter returns when the next attempt is due, by the error's own word; zero when it says nothing.
func retryAfter(err error) time.Duration {
	var r interface{ RetryAfter() time.Duration }
	if errors.As(err, &r) {
		return max(r.RetryAfter(), 0)
	}
	return 0
}

// maxReason bounds, in bytes, what is stored of an error.
const maxReason = 1000

// reasonOf returns the text of err as PostgreSQL can store it.
func reasonOf(err error) string {
	text := strings.ToValidUTF8(strings.ReplaceAll(err.Error(), "\x00", ""), "\uFFFD")
	if len(text) <= maxReason {
		return text
	}
	cut := maxReason
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut]
}
