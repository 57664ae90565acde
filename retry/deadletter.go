package retry

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/wire"
)

// DeadLetter is a message that was given up. Its Exchange, RoutingKey, properties and headers are those with which it was
// first delivered, as far as anybody has kept them; nothing else of a text in it was checked, so it must not go to a terminal
// or a log unquoted. It cannot be settled: Ack and its like are errors, and Redrive and Discard are the way.
type DeadLetter struct {
	amqp.Delivery

	// Info is what the headers of a Retrier say. Of a message that the broker moved, LastFailure is when it did so, if the
	// message has failed in no handler.
	Info

	// Reason is why it is here. A Retrier says "exhausted", "permanent", "undecodable", "panic", "too-old", "expired" or
	// "oversized"; the broker "rejected", "expired", "delivery_limit" or "maxlen". Empty when nobody said.
	Reason string

	// ByBroker says that the broker moved it, by itself or because a handler without a Retrier failed.
	ByBroker bool

	// Consumer is whose handler failed last, when a Retrier knows.
	Consumer string

	// Cut are the names of headers, 100 at most, that a Retrier had to leave out since they did not fit.
	Cut []string
}

// letter is a dead letter as it was found.
type letter struct {
	DeadLetter
	redrive string // the call that sent it back last
	record  record
}

// letterOf reads a delivery from the dead-letter queue of queue.
func letterOf(d amqp.Delivery, queue string) letter {
	death, dead := lastDeath(d.Headers)
	believed := d.RoutingKey == deadLetterQueue(queue)
	if dead {
		believed = trusted(death.exchange, death.key, death.queue, d.Exchange)
	}
	first, r := restore(d, believed)
	l := letter{redrive: bounded(text(d.Headers[redriveHeader]), maxShort)}
	switch {
	case believed && hasKey(d.Headers):
	case dead:
		first.Exchange, first.RoutingKey, first.Expiration = death.exchange, death.key, death.expiration
		if _, kept := first.Headers["CC"]; !kept && len(death.cc) > 0 {
			first.Headers = with(first.Headers, "CC", death.cc)
		}
	default: // a copy by somebody who keeps no more than the message
		first.Exchange, first.RoutingKey = "", queue
	}
	if dead {
		r.reason, r.consumer = death.reason, ""
		if r.last.IsZero() {
			r.last = death.at
		}
		if r.first.IsZero() {
			r.first = r.last
		}
	}
	first.Headers = asDelivered(first)
	first.Acknowledger, first.DeliveryTag, first.ConsumerTag = nil, 0, "" // it is not the caller's to settle
	l.DeadLetter = DeadLetter{Delivery: first, Info: r.info(), Reason: r.reason, ByBroker: dead, Consumer: r.consumer, Cut: r.cut}
	r.redrive, l.record = l.redrive, r
	return l
}

func hasKey(t amqp.Table) bool {
	_, ok := t[keyHeader].(string)
	return ok
}

// asDelivered returns the headers without those that brokers have added on the way here.
func asDelivered(d amqp.Delivery) amqp.Table {
	kept := wire.Copy(d).Headers
	for _, name := range [...]string{"CC", "BCC", "x-delay"} { // not for a copy, but the sender's own
		if v, ok := d.Headers[name]; ok {
			kept = with(kept, name, v)
		}
	}
	return kept
}

// death is what the broker noted when it dead-lettered a message.
type death struct {
	queue, reason string
	exchange, key string // of the message's delivery to that queue
	cc            []any  // further keys
	expiration    string
	at            time.Time
}

// lastDeath returns the newest entry of x-death: the broker puts it first. Whatever is missing or of another kind is zero.
func lastDeath(t amqp.Table) (d death, ok bool) {
	deaths, _ := t["x-death"].([]any)
	if len(deaths) == 0 {
		return death{}, false
	}
	entry, ok := deaths[0].(amqp.Table)
	if !ok || text(entry["queue"]) == "" || text(entry["reason"]) == "" {
		return death{}, false
	}
	d = death{queue: text(entry["queue"]), reason: bounded(text(entry["reason"]), maxShort),
		exchange: bounded(text(entry["exchange"]), maxShort), expiration: bounded(text(entry["original-expiration"]), maxShort)}
	if keys, _ := entry["routing-keys"].([]any); len(keys) > 0 {
		d.key = bounded(text(keys[0]), maxShort)
		d.cc = keys[1:]
	}
	d.at, _ = entry["time"].(time.Time)
	return d, true
}

// back returns what is published to send l back: as it was first delivered, and on its first attempt again.
func (l letter) back(redrive string) amqp.Publishing {
	return copyOf(l.Delivery, record{attempt: 1, redrive: redrive})
}

// copy returns what is published to have l in the dead-letter queue again. That the broker moved it is lost, the reason is not.
func (l letter) copy() amqp.Publishing { return copyOf(l.Delivery, l.record) }
