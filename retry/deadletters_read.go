package retry

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
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

	// onItsWay is how long nothing comes before the broker is asked whether there is more.
	onItsWay = 50 * time.Millisecond
	// settled is how long after its "no more" nothing must come, if more was there at the beginning, and how long what was given
	// back may take to be ready again. It passes only when somebody else takes from the queue, too.
	settled = time.Second
	// stuckAfter is when messages that are ready and do not come are taken to go to somebody else.
	stuckAfter = 30 * time.Second
	// pipelined is how many settlements may be under way. What exceeds 32, a quorum queue's client in the broker gathers, for
	// each consumer: returns lose their order in that, and with the channel all of it is lost.
	pipelined = 30
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

	total  int       // messages to be taken at most: those that were there at the beginning, so that it comes to an end
	seen   int       // taken, but for what a Redrive has sent back itself
	own    int       // of what is held, so many are that
	expect int       // of them, at least so many are there or on their way back from a channel that was lost,
	until  time.Time // if they come until then

	portion int             // size of the next one at most
	taken   int             // portions
	again   bool            // the last message taken had been given back before
	held    []handed        // in order
	spare   []amqp.Delivery // taken, and not yet handed out by next
	open    int             // taken, and neither held nor known to be settled
	doubt   int             // of these, acknowledged
	under   int             // settlements under way

	first    *amqp.Delivery // on which it was tried whether the queue keeps what is given back; nil: it was not
	firstTag uint64         // with which that came again; 0: not yet
	rescue   func(ctx context.Context, d amqp.Delivery) error
}

// handed is a message that is held.
type handed struct {
	tag      uint64
	consumer string
}

// next takes the next portion, of most messages at most. There is none at the end.
func (r *reader) next(ctx context.Context, most int) ([]amqp.Delivery, error) {
	for {
		rest := min(r.total-r.seen, most-len(r.spare))
		if rest <= 0 {
			return r.spared(nil), nil
		}
		got, err := r.take(ctx, rest)
		if err != nil {
			return nil, err
		}
		if got = r.spared(got); len(got) > 0 {
			return got, nil
		}
		if r.seen >= r.expect || time.Now().After(r.until) || closed(r.stop) {
			return nil, nil
		}
		if err := pause(ctx, onItsWay); err != nil {
			return nil, err
		}
	}
}

// spared puts what was taken before in front of got.
func (r *reader) spared(got []amqp.Delivery) []amqp.Delivery {
	got = append(r.spare, got...)
	r.spare = nil
	return got
}

// take takes one portion, of most messages at most, but fewer when the queue has no more.
func (r *reader) take(ctx context.Context, most int) ([]amqp.Delivery, error) {
	size := min(most, r.portion)
	r.seen += size // until it is known how many come
	r.open += size
	// In the order of their names a broker gives back what the consumers of a channel that dies had in hand.
	tag := fmt.Sprintf("dead-letters-%06d-%s", r.taken, rand.Text())
	r.taken++
	consuming := make(chan (<-chan amqp.Delivery), 1)
	err := call(ctx, func() error {
		if err := r.ch.Qos(size, 0, false); err != nil {
			return err
		}
		deliveries, err := r.ch.Consume(r.queue, tag, false, false, false, false, nil)
		consuming <- deliveries
		return err
	})
	if err != nil {
		return nil, err
	}
	deliveries := <-consuming
	r.under = 0 // a consumer begins when all that was said before is done
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
	r.seen += len(got) - size
	r.open += len(got) - size
	return got, r.learn(got)
}

// gather waits for a portion. There were that many at the beginning, so when they do not come somebody else has them, or
// the broker is slow.
func (r *reader) gather(ctx context.Context, deliveries <-chan amqp.Delivery, size int) (got []amqp.Delivery, err error) {
	idle := time.NewTimer(onItsWay)
	defer idle.Stop()
	last, none := time.Now(), time.Time{}
	for len(got) < size {
		select {
		case d, ok := <-deliveries:
			if !ok {
				return nil, fmt.Errorf("channel lost: %w", amqp.ErrClosed)
			}
			got, last, none = append(got, d), time.Now(), time.Time{}
		case <-idle.C:
			if !none.IsZero() && time.Since(none) >= settled {
				return got, nil
			}
			d, ok, err := r.more(ctx)
			switch {
			case err != nil:
				return nil, err
			case d != nil:
				got, last, none = append(got, *d), time.Now(), time.Time{}
			case !ok && none.IsZero():
				none = time.Now()
			}
			if time.Since(last) > stuckAfter {
				return nil, &refusal{errors.New("its messages do not come: does somebody else consume it?")}
			}
		case <-r.stop:
			return got, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		idle.Reset(onItsWay)
	}
	return got, nil
}

// more reports whether there are more. Only the request for one gives a reliable answer when there are none; it may bring one.
func (r *reader) more(ctx context.Context) (*amqp.Delivery, bool, error) {
	if n, err := r.ready(ctx); n > 0 || err != nil {
		return nil, true, err
	}
	d, ok, err := r.one(ctx)
	if !ok {
		return nil, false, err
	}
	return &d, true, nil
}

// one takes the message at the head.
func (r *reader) one(ctx context.Context) (d amqp.Delivery, ok bool, err error) {
	type answer struct {
		d  amqp.Delivery
		ok bool
	}
	got := make(chan answer, 1)
	err = call(ctx, func() error {
		d, ok, err := r.ch.Get(r.queue, false)
		got <- answer{d, ok}
		return err
	})
	if err != nil {
		return amqp.Delivery{}, false, err
	}
	a := <-got
	return a.d, a.ok, nil
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

// left is how many messages there are to be taken on another channel when this one is lost: those it has not got to, and
// what it had in hand.
func (r *reader) left() int { return r.total - r.seen + len(r.held) + r.open - r.own }

// account notes that nothing is in hand, since it was given back or the channel is lost, and how many there are to be taken.
func (r *reader) account(left int) {
	r.total, r.seen, r.own, r.open, r.held = left, 0, 0, 0, nil
}

// disown notes that a message which is going to be held was not there at the beginning: a Redrive has sent it back, and it is dead again.
// It may come before those that a lost connection had in hand.
func (r *reader) disown() {
	r.seen--
	r.own++
}

// begin looks how much there is to be taken, from the head on.
func (r *reader) begin(ctx context.Context) error {
	total, err := r.ready(ctx)
	if err == nil {
		r.seen, r.total = 0, total
	}
	return err
}

// restart puts back what is held, and begins again.
func (r *reader) restart(ctx context.Context) error {
	stop := r.stop
	if err := r.putBack(ctx); err != nil {
		return err
	}
	left := r.left()
	r.stop, r.expect, r.until, r.first, r.firstTag = stop, 0, time.Time{}, nil, 0
	if err := r.begin(ctx); err != nil {
		return err
	}
	r.total = min(r.total, left)
	return nil
}
