package retry

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Info is what is known of the earlier attempts to handle a message.
type Info struct {
	Attempt                   int       // 1 on the first delivery
	FirstFailure, LastFailure time.Time // by the clocks of those who failed; zero on the first attempt
	LastError                 string    // at most 1 KiB of the last failure's text; may hold anything, so quote it
}

// InfoOf reads what a delivery's headers say. Inside a handler that a Retrier has wrapped they are the Retrier's own;
// anywhere else they are what somebody wrote. A delivery without them is on its first attempt. A handler that sends its
// delivery's headers on leaves out those that begin with warren-: in the queue of another Retrier they would be believed.
func InfoOf(d amqp.Delivery) Info { return readRecord(d.Headers).info() }

func (r record) info() Info {
	return Info{Attempt: r.attempt, FirstFailure: r.first, LastFailure: r.last, LastError: r.err}
}

// show returns first, a message as it was first delivered, with the headers that InfoOf reads. On the first attempt it has
// none.
func (r record) show(first amqp.Delivery) amqp.Delivery {
	if r.attempt <= 1 && r.last.IsZero() {
		return first
	}
	h := with(first.Headers, attemptHeader, int64(r.attempt))
	put(h, firstFailureHeader, formatTime(r.first))
	put(h, lastFailureHeader, formatTime(r.last))
	put(h, errorHeader, r.err)
	first.Headers = h
	return first
}
