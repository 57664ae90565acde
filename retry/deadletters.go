package retry

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/prefix"
	"github.com/warrenmq/warren/reconnect"
)

// DeadLetters is a look into the dead-letter queue of one queue, "<queue>.dlq": what is in it, sending it back, throwing it
// away. It reads what a Retrier put there and what the broker did (rejected, expired, over the delivery limit or the length
// of its queue) alike. It holds nothing between calls, and is safe for concurrent use, as are several of them, in several
// programs, on one queue; a message that one of them has in hand is not seen by the others.
//
// # Looking
//
// The broker has no way to look at a message but to take it, and to give it back. That counts: a quorum queue drops what was
// given back more often than its delivery limit says. So every method that takes messages first makes sure, by declaring
// it as this module does, that the queue is a quorum queue with an x-delivery-limit of a million (as little as 1000 will do,
// for as long as it lasts), or a plain classic queue, which counts nothing. Any other is refused, with a
// *reconnect.TopologyError that says what it is, and nothing is taken. What no client can see is a policy. One that lowers the
// delivery-limit shows when the oldest message, which is given back first and watched, is dropped: then it is put in again, at
// the end, and the call fails before it has taken others that would go back. One that sets a message-ttl or a max-length does
// not show; it must not match dead-letter queues.
//
// Messages are read on a connection of their own, in portions of at most 8 MiB, single bodies excepted, and given back in
// their order. A quorum queue puts what is given back behind what was given back before, so that looking at a few would
// change the order: therefore whoever has looked at the queue before pays with reading on, without showing it, up to where
// nobody has been. A reader that is killed, or loses its connection, loses nothing, but what it had in hand may come to
// stand behind what others had looked at, and so may what two have in hand at once.
//
// # Rights
//
// Configure and read on the dead-letter queue: configure to compare it with what it should be, for which no other right will do.
// To send back, write on amq.default, which is also what puts a message in again that a policy was about to drop.
type DeadLetters struct {
	conn  *reconnect.Conn
	queue string // the one whose failures they are
	pub   *reconnect.Publisher
}

// NewDeadLetters returns the DeadLetters of queue, which is the queue that is worked on, not that of its dead letters. It does
// no I/O.
func NewDeadLetters(conn *reconnect.Conn, queue string) (*DeadLetters, error) {
	var faults []error
	if conn == nil {
		faults = append(faults, errors.New("conn: nil"))
	}
	faults = append(faults, checkName(queue))
	l := &DeadLetters{conn: conn, queue: queue}
	if conn != nil {
		var err error
		l.pub, err = conn.NewPublisher(reconnect.PublisherConfig{Shared: true})
		faults = append(faults, err)
	}
	if err := errors.Join(faults...); err != nil {
		return nil, fmt.Errorf("retry: dead letters: %w", err)
	}
	return l, nil
}

// Count returns how many dead letters are ready: those that somebody has in hand at the moment are not among them. Without
// a dead-letter queue it is an *amqp.Error with code 404. It blocks until the broker answers or ctx ends.
func (l *DeadLetters) Count(ctx context.Context) (int, error) {
	n, err := ready(ctx, func() (int, error) {
		q, err := l.conn.Inspect(ctx, deadLetterQueue(l.queue))
		return q.Messages, err
	})
	if err != nil {
		return 0, l.failed("count", err)
	}
	return n, nil
}

// Watch calls fn with what Count returns, at once and then again and again, every so often: to set a gauge, or to raise an
// alarm at the first dead letter. fn runs on Watch's own goroutine, so while it is slow nothing is counted. The depth as
// an OpenTelemetry metric, without a Watch, is what reconnect's Conn.ObserveQueues gives for "<queue>.dlq".
//
// It blocks until ctx ends, and then returns nil. It goes on through lost connections, and, once it has counted, while the
// queue is missing; fn is not called meanwhile. It returns what cannot be mended: that there is no such queue to begin
// with, that the user may not look at it, reconnect.ErrClosed.
func (l *DeadLetters) Watch(ctx context.Context, every time.Duration, fn func(count int)) error {
	var faults []error
	if every <= 0 {
		faults = append(faults, fmt.Errorf("every: %v, must be positive", every))
	}
	if fn == nil {
		faults = append(faults, errors.New("fn: nil"))
	}
	if err := errors.Join(faults...); err != nil {
		return l.failed("watch", err)
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for counted := false; ctx.Err() == nil; {
		n, err := l.Count(ctx)
		switch {
		case err == nil:
			counted = true
			fn(n)
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, reconnect.ErrClosed), codeOf(err) == amqp.AccessRefused, codeOf(err) == amqp.NotFound && !counted:
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	return nil
}

// failed says what was attempted.
func (l *DeadLetters) failed(what string, err error) error {
	return prefix.Wrap(fmt.Sprintf("retry: %s dead letters of queue %q", what, l.queue), err)
}

// codeOf returns the code of the broker's error in the chain, or 0.
func codeOf(err error) int {
	var e *amqp.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}
