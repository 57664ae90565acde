package retry

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	portionBytes = 8 << 20 // of the bodies in hand, about
	portionMost  = 1000    // messages in hand
	// besideBody is what a message costs beside its body.
	besideBody = 1 << 10
	// portionGrowth bounds how much larger a portion may be than the one before, whose messages it is judged by.
	portionGrowth = 4

	// onItsWay is given to deliveries that the broker has sent already.
	onItsWay = 50 * time.Millisecond
	// stuckAfter is when messages that are ready and do not come are taken to go to somebody else.
	stuckAfter = 30 * time.Second
	// limitReserve is how far from its delivery limit a message is left alone.
	limitReserve = 500
)

// reader takes messages from the head of the dead-letter queue, in portions, and gives back what it was told to hold. Each
// portion is taken by a consumer that is cancelled when it is complete, and whose prefetch is the portion's size: so no more
// is in hand than asked for, however large the queue, in a round trip or three for many messages. Not by basic.get: the
// broker takes each of those for a consumer of its own, and gives back what more than 32 consumers of a channel that
// dies had in hand in no order at all.
//
// It is used by one goroutine. Its contexts bound the calls to the broker; that no more is wanted is what stop is for.
type reader struct {
	ch    *amqp.Channel
	queue string
	kind  kind
	stop  <-chan struct{} // closed when no more is to be taken

	total  int       // messages to be taken at most: those that were there at the beginning
	seen   int       // taken
	expect int       // of them, at least so many are there or on their way back from a channel that was lost,
	until  time.Time // if they come until then

	portion int      // size of the next one at most
	taken   int      // portions
	again   bool     // the last message taken had been given back before
	held    []uint64 // delivery tags, in order
	open    int      // taken, and neither held nor settled
}

// next takes the next portion, of most messages at most. There is none at the end.
func (r *reader) next(ctx context.Context, most int) ([]amqp.Delivery, error) {
	for {
		rest := min(r.total-r.seen, most)
		if rest <= 0 {
			return nil, nil
		}
		got, err := r.take(ctx, rest)
		if err != nil || len(got) > 0 {
			return got, err
		}
		if r.seen >= r.expect || time.Now().After(r.until) || closed(r.stop) {
			return nil, nil
		}
		if err := pause(ctx, onItsWay); err != nil {
			return nil, err
		}
	}
}

// take takes one portion, of most messages at most, but fewer when the queue has no more.
func (r *reader) take(ctx context.Context, most int) ([]amqp.Delivery, error) {
	size := min(most, r.portion)
	r.open += size
	// In the order of their names a broker gives back what the consumers of a channel that dies had in hand.
	tag := fmt.Sprintf("dead-letters-%06d-%s", r.taken, rand.Text())
	r.taken++
	var deliveries <-chan amqp.Delivery
	err := call(ctx, func() (err error) {
		if err = r.ch.Qos(size, 0, false); err == nil {
			deliveries, err = r.ch.Consume(r.queue, tag, false, false, false, false, nil)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	got, err := r.gather(ctx, deliveries, size)
	if err != nil {
		return nil, err
	}
	if err := call(ctx, func() error { return r.ch.Cancel(tag, false) }); err != nil {
		return nil, err
	}
	for d := range deliveries { // it is closed now
		got = append(got, d)
	}
	r.seen += len(got)
	r.open += len(got) - size
	return got, r.learn(got)
}

// gather waits for a portion. When nothing comes and nothing is ready, the queue has no more.
func (r *reader) gather(ctx context.Context, deliveries <-chan amqp.Delivery, size int) (got []amqp.Delivery, err error) {
	idle := time.NewTimer(onItsWay)
	defer idle.Stop()
	last, empty := time.Now(), false
	for len(got) < size {
		select {
		case d, ok := <-deliveries:
			if !ok {
				return nil, fmt.Errorf("channel lost: %w", amqp.ErrClosed)
			}
			got, last, empty = append(got, d), time.Now(), false
			idle.Reset(onItsWay)
		case <-idle.C:
			if empty { // and what was on its way has come
				return got, nil
			}
			ready, err := r.ready(ctx)
			if err != nil {
				return nil, err
			}
			if empty = ready == 0; !empty && time.Since(last) > stuckAfter {
				return nil, &refusal{errors.New("its messages do not come: does somebody else consume it?")}
			}
			idle.Reset(onItsWay)
		case <-r.stop:
			return got, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return got, nil
}

// learn draws the conclusions from a portion.
func (r *reader) learn(got []amqp.Delivery) error {
	if len(got) == 0 {
		return nil
	}
	size := 0
	for _, d := range got {
		size += len(d.Body) + besideBody
		if n, ok := integer(d.Headers["x-delivery-count"]); ok && n > r.kind.limit-limitReserve {
			return &refusal{fmt.Errorf("message %q was given back %d times, and the queue's x-delivery-limit is %d: looking at it again might "+
				"lose it", d.MessageId, n, r.kind.limit)}
		}
	}
	r.again = got[len(got)-1].Redelivered
	r.portion = max(1, min(portionBytes*len(got)/size, portionGrowth*max(len(got), r.portion/portionGrowth), portionMost))
	return nil
}

// hold keeps a message until putBack.
func (r *reader) hold(d amqp.Delivery) {
	r.held = append(r.held, d.DeliveryTag)
	r.open--
}

// ack takes messages off the queue, and returns when the broker has done so.
func (r *reader) ack(ctx context.Context, ds []amqp.Delivery) error {
	for _, d := range ds {
		if err := r.ch.Ack(d.DeliveryTag, false); err != nil {
			return err
		}
	}
	if _, err := r.ready(ctx); err != nil { // it answers what it is asked in order
		return err
	}
	r.open -= len(ds)
	return nil
}

// unsettled is how many messages come back when the channel is lost.
func (r *reader) unsettled() int { return len(r.held) + r.open }

// putBack gives back what is held, in its order and to its place.
//
// A quorum queue keeps what was given back apart from what nobody has had, hands it out first, and appends what comes. So
// behind the messages held there must be none that had been given back before: they are taken too. That one was not says
// that there are no more of them.
func (r *reader) putBack(ctx context.Context) error {
	if len(r.held) == 0 {
		return nil
	}
	r.stop = nil
	if r.kind.quorum && r.again {
		ready, err := r.ready(ctx)
		if err != nil {
			return err
		}
		r.total = r.seen + ready
		for r.again {
			got, err := r.next(ctx, math.MaxInt)
			if err != nil {
				return err
			}
			for _, d := range got {
				r.hold(d)
			}
			if len(got) == 0 {
				break
			}
		}
	}
	// One by one: of a nack of many the broker makes one command, and a set of more than 32 has no order.
	for _, tag := range r.held {
		if err := r.ch.Nack(tag, false, true); err != nil {
			return err
		}
	}
	_, err := r.ready(ctx)
	if err == nil {
		r.held = nil
	}
	return err
}

// restart puts back what is held, and begins again at the head.
func (r *reader) restart(ctx context.Context) error {
	stop := r.stop
	if err := r.putBack(ctx); err != nil {
		return err
	}
	ready, err := r.ready(ctx)
	r.stop, r.seen, r.expect, r.total = stop, 0, 0, ready
	return err
}

// ready is the number of messages that wait in the queue. The broker answers when it has done all it was told before.
func (r *reader) ready(ctx context.Context) (n int, err error) {
	err = call(ctx, func() error {
		q, err := r.ch.QueueDeclarePassive(r.queue, true, false, false, false, nil)
		n = q.Messages
		return err
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// call runs a call of the driver, which knows no context, and leaves it alone when ctx ends: it ends with its channel.
func call(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
