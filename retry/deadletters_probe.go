package retry

import (
	"bytes"
	"context"
	"fmt"
	"reflect"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/wire"
)

// A policy can lower a queue's delivery limit below what its arguments say, and no client can see that. So before others are
// taken that are to go back it is tried on the one at the head, which has been given back at least as often as any other, for
// this reason too; it is kept in memory meanwhile. If the queue drops it, it is put in again, and nothing else is taken. If not,
// the others can stand one more return. It itself is given back once more at the end, and again watched.
//
// In a quorum queue it then stands behind all others that were given back before, and comes again when those have been taken; it
// is held in front of them.

// probeFrom is how often the message at the head must have been given back for it to be tried: no policy sets less.
const probeFrom = 2

// probe tries it. Afterwards first is set, if it was.
func (r *reader) probe(ctx context.Context) error {
	if !r.kind.quorum {
		return nil
	}
	got, err := r.next(ctx, 1)
	if err != nil || len(got) == 0 {
		return err
	}
	if n, _ := integer(got[0].Headers["x-delivery-count"]); n < probeFrom {
		r.spare = got
		return nil
	}
	r.seen--
	r.open--
	if err := r.tryOn(ctx, got[0].DeliveryTag, got[0]); err != nil {
		return err
	}
	r.first, r.again = &got[0], true
	return nil
}

// tryOn gives d, which came with the tag, back, and sees whether the queue keeps it.
func (r *reader) tryOn(ctx context.Context, tag uint64, d amqp.Delivery) error {
	ready, err := r.ready(ctx)
	if err != nil {
		return err
	}
	before, err := r.inspect(ctx)
	if err != nil {
		return err
	}
	before.Messages = ready
	if err := r.ch.Nack(tag, false, true); err != nil {
		return err
	}
	kept, err := r.kept(ctx, before, d)
	if err != nil || kept {
		return err
	}
	return r.dropped(ctx, d)
}

// kept reports whether d, which was given back, is there: more messages are ready than before. When somebody else takes or adds
// messages meanwhile, which shows by any other number, or by consumers that are not ours, that says nothing, and it is taken
// to be so.
func (r *reader) kept(ctx context.Context, before amqp.Queue, d amqp.Delivery) (bool, error) {
	if before.Consumers > r.consumers()+1 {
		return true, nil
	}
	for late := time.Now().Add(settled); time.Now().Before(late); {
		q, err := r.inspect(ctx)
		if err != nil || q.Messages != before.Messages && q.Messages > 0 || q.Consumers > before.Consumers {
			return true, err
		}
		if err := pause(ctx, 2*time.Millisecond); err != nil {
			return true, err
		}
	}
	// The queue may only be slow. Before it hands out another it has done what it was told.
	head, ok, err := r.one(ctx)
	if err != nil || !ok {
		return err != nil, err
	}
	r.spare = append(r.spare, head)
	r.seen++
	r.open++
	if same(head, d) {
		return true, nil
	}
	now, err := r.ready(ctx)
	return now >= before.Messages, err
}

// consumers is how many of ours the broker may count: those that are cancelled it counts for as long as we hold what they
// brought.
func (r *reader) consumers() int {
	names := map[string]bool{}
	for _, h := range r.held {
		names[h.consumer] = true
	}
	return len(names)
}

// dropped puts d, which the queue has dropped, in again, and with it what was taken to find that out: that must not be given
// back either.
func (r *reader) dropped(ctx context.Context, d amqp.Delivery) error {
	spare := r.spare
	r.spare = nil
	err := r.rescue(ctx, d)
	for _, other := range spare {
		if err == nil {
			err = r.rescue(ctx, other)
		}
		if err == nil {
			err = r.ack(ctx, []amqp.Delivery{other}, false)
		}
	}
	if err != nil {
		return &refusal{fmt.Errorf("message %q was given back, and the queue has dropped it, so a policy limits how often it takes one back; it "+
			"could not be put in again: %w", d.MessageId, err)}
	}
	return &refusal{fmt.Errorf("message %q was given back, and the queue has dropped it, so a policy (delivery-limit?) limits how often it takes "+
		"one back; it was put in again at the end: nothing can be looked at safely", d.MessageId)}
}

// isFirst tells whether d is the message that the probe was made with, come again.
func (r *reader) isFirst(d amqp.Delivery) bool {
	if r.first == nil || r.firstTag != 0 {
		return r.firstTag != 0 && d.DeliveryTag == r.firstTag
	}
	if !same(d, *r.first) {
		return false
	}
	r.firstTag = d.DeliveryTag
	return true
}

// same tells whether two deliveries are of one message, as far as can be told.
func same(a, b amqp.Delivery) bool {
	return a.MessageId == b.MessageId && bytes.Equal(a.Body, b.Body) && reflect.DeepEqual(wire.Copy(a), wire.Copy(b))
}

// rescue puts a message that the dead-letter queue has dropped back into it.
func (l *DeadLetters) rescue(ctx context.Context, d amqp.Delivery) error {
	return l.pub.Publish(ctx, "", deadLetterQueue(l.queue), letterOf(d, l.queue).copy())
}
