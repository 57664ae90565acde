package retry

import (
	"maps"
	"math"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/wire"
)

// Our own headers. None begins with x-: from RabbitMQ 4.0 on such a header of a client is ignored or replaced.
const (
	attemptHeader      = "warren-attempt"       // int64: number of the handler's next run; on a dead letter: of the last one
	firstFailureHeader = "warren-first-failure" // text, RFC 3339 with fractions of a second
	lastFailureHeader  = "warren-last-failure"  // likewise
	errorHeader        = "warren-error"         // text of the last failure, at most maxError bytes
	notBeforeHeader    = "warren-not-before"    // likewise a time: the handler must not run earlier

	// What a copy cannot carry where it belongs.
	exchangeHeader   = "warren-exchange"    // exchange and routing key of the first delivery
	keyHeader        = "warren-routing-key" // (warren-key is package consistenthash's)
	userIDHeader     = "warren-user-id"     // a UserId must be the publishing link's own
	expirationHeader = "warren-expiration"  // an Expiration would cut the delay short
	priorityHeader   = "warren-priority"    // above maxDelayedPriority, see there
	ccHeader         = "warren-cc"          // CC would route further copies

	// Of dead letters that we made.
	reasonHeader   = "warren-reason"
	consumerHeader = "warren-consumer" // whose handler failed last
	cutHeader      = "warren-cut"      // names of the message's own headers that did not fit

	redriveHeader = "warren-redrive" // the call of DeadLetters.Redrive that sent it back last
)

// ownHeaders are all of them. They are taken off what a handler sees, and made anew for each copy.
var ownHeaders = [...]string{
	attemptHeader, firstFailureHeader, lastFailureHeader, errorHeader, notBeforeHeader,
	exchangeHeader, keyHeader, userIDHeader, expirationHeader, priorityHeader, ccHeader,
	reasonHeader, consumerHeader, cutHeader, redriveHeader,
}

// Why a message that we moved to the dead-letter queue is there. The broker's own reasons are "rejected", "expired",
// "delivery_limit" and "maxlen".
const (
	reasonExhausted   = "exhausted"   // MaxAttempts are used up
	reasonPermanent   = "permanent"   // the error says that trying again is of no use
	reasonUndecodable = "undecodable" // so does a body that cannot be decoded
	reasonPanic       = "panic"       // MaxAttempts are used up, and the last one panicked
	reasonTooOld      = "too-old"     // the next attempt would begin MaxAge after the first failure, or later
	reasonExpired     = "expired"     // the message's own Expiration has passed since the first failure
	reasonOversized   = "oversized"   // its headers leave no room for ours: foreign ones are cut
)

// Bounds of what goes into headers: all properties and headers must fit into one frame, or the connection is lost.
const (
	maxError    = 1024
	maxShort    = 255
	maxCutNames = 100
	maxCutBytes = 4096
)

// maxAttempt bounds the attempt of an unlimited policy: a forged number must not overflow.
const maxAttempt = math.MaxInt32

// maxDelayedPriority is the highest priority of a copy in a delay queue; the handler is shown the first one all the same.
// A quorum queue of RabbitMQ 4 lets go of two messages above it before one of the others, also when those two are not due
// and the one is: with a message of priority 9 every 100 ms, twenty delays of 0.7 s took up to 2.7 s on 4.0.5.
const maxDelayedPriority = 4

// record is what our headers say of a message.
type record struct {
	attempt     int       // from 1
	first, last time.Time // failures; zero: none
	err         string    // text of the last one
	notBefore   time.Time

	reason, consumer string // of a dead letter that we made
	cut              []string

	redrive string // stays with it through further attempts, so that one call does not send it back twice
}

// trusted tells whether our headers of a delivery with this exchange and key may be ours, for the consumer of queue: a
// copy comes back through the default exchange, or one of the given others, under the queue's own name. What comes by any
// other way got them from somebody else: a publisher that passes on the headers of what it consumed, or a forger.
func trusted(exchange, key, queue string, others ...string) bool {
	if key != queue {
		return false
	}
	for _, o := range others {
		if o != "" && exchange == o {
			return true
		}
	}
	return exchange == ""
}

// restore returns d as it was first delivered, without any of our headers, and what those say. When they are not trusted
// nothing is believed: the message is on its first attempt. The caller clamps the attempt to its policy.
func restore(d amqp.Delivery, trusted bool) (amqp.Delivery, record) {
	own := d.Headers
	d.Headers = foreign(d.Headers)
	if !trusted || len(own) == 0 {
		return d, record{attempt: 1}
	}
	if key, ok := own[keyHeader].(string); ok {
		d.Headers = travelled(d.Headers)
		d.RoutingKey = bounded(key, maxShort)
		d.Exchange = bounded(text(own[exchangeHeader]), maxShort)
		d.UserId = bounded(text(own[userIDHeader]), maxShort)
		if e := text(own[expirationHeader]); e != "" {
			if _, ok := parseExpiration(e); ok {
				d.Expiration = e
			}
		}
		if n, ok := integer(own[priorityHeader]); ok && n > maxDelayedPriority && n <= math.MaxUint8 {
			d.Priority = uint8(n)
		}
		if cc, ok := own[ccHeader].([]any); ok {
			d.Headers = with(d.Headers, "CC", cc)
		}
	}
	return d, readRecord(own)
}

// travelled takes off t what the broker wrote on the way of a copy, which began without. t is ours to change.
func travelled(t amqp.Table) amqp.Table {
	for name := range t {
		if name == "x-death" || name == delayHeader || strings.HasPrefix(name, "x-first-death-") || strings.HasPrefix(name, "x-last-death-") {
			delete(t, name)
		}
	}
	if len(t) == 0 {
		return nil
	}
	return t
}

// readRecord reads our headers, however wide their numbers are.
func readRecord(own amqp.Table) record {
	now := time.Now().UTC().Round(0) // like the times in headers: also what another's clock is ahead for
	r := record{
		attempt: 1, err: bounded(text(own[errorHeader]), maxError),
		first: pastTime(own[firstFailureHeader], now), last: pastTime(own[lastFailureHeader], now),
		reason: bounded(text(own[reasonHeader]), maxShort), consumer: bounded(text(own[consumerHeader]), maxShort),
		redrive: bounded(text(own[redriveHeader]), maxShort),
	}
	if n, ok := integer(own[attemptHeader]); ok {
		r.attempt = int(min(max(n, 1), maxAttempt))
	}
	// The broker never waits longer for us than one delay after the last failure, and a loop of delays must end.
	if t := parseTime(own[notBeforeHeader]); !r.last.IsZero() && !t.After(r.last.Add(maxDelay)) {
		r.notBefore = t
	}
	if names, ok := own[cutHeader].([]any); ok {
		for _, name := range names[:min(len(names), maxCutNames)] {
			r.cut = append(r.cut, bounded(text(name), maxShort))
		}
	}
	return r
}

// copyOf returns what is published for first, a delivery as restore returned it: a copy without what must not be copied,
// with our headers for r. Where it goes decides what else it needs.
func copyOf(first amqp.Delivery, r record) amqp.Publishing {
	msg := wire.Copy(first)
	h := make(amqp.Table, len(msg.Headers)+8)
	maps.Copy(h, msg.Headers)
	h[exchangeHeader], h[keyHeader] = first.Exchange, first.RoutingKey
	if r.attempt > 1 || !r.last.IsZero() {
		h[attemptHeader] = int64(r.attempt)
	}
	put(h, firstFailureHeader, formatTime(r.first))
	put(h, lastFailureHeader, formatTime(r.last))
	put(h, errorHeader, bounded(r.err, maxError))
	put(h, notBeforeHeader, formatTime(r.notBefore))
	put(h, userIDHeader, first.UserId)
	put(h, expirationHeader, first.Expiration)
	if cc, ok := first.Headers["CC"].([]any); ok {
		h[ccHeader] = cc
	}
	put(h, reasonHeader, r.reason)
	put(h, consumerHeader, bounded(r.consumer, maxShort))
	put(h, redriveHeader, r.redrive)
	if len(r.cut) > 0 {
		names := make([]any, len(r.cut))
		for i, name := range r.cut {
			names[i] = name
		}
		h[cutHeader] = names
	}
	msg.Headers = h
	return msg
}
