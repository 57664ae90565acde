package retry

import (
	"context"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"
)

// hold keeps a message until putBack.
func (r *reader) hold(d amqp.Delivery) {
	r.open--
	if r.isFirst(d) {
		r.held = slices.Insert(r.held, 0, handed{d.DeliveryTag, d.ConsumerTag})
		return
	}
	r.held = append(r.held, handed{d.DeliveryTag, d.ConsumerTag})
}

// ack takes messages, in their order, off the queue. prefix says that they are all that the portion has had so far.
func (r *reader) ack(ctx context.Context, ds []amqp.Delivery, prefix bool) error {
	if len(ds) == 0 {
		return nil
	}
	r.doubt += len(ds)
	if prefix && len(r.held) == 0 { // nothing before them is to stay
		ds = ds[len(ds)-1:]
	} else {
		prefix = false
	}
	for _, d := range ds {
		if err := r.settle(ctx, func() error { return r.ch.Ack(d.DeliveryTag, prefix) }); err != nil {
			return err
		}
	}
	if err := call(ctx, func() error { return r.ch.Qos(1, 0, false) }); err != nil {
		return err
	}
	r.open -= r.doubt // the broker answers in order: it has taken the acks in
	r.doubt = 0
	return nil
}

// settle keeps the number of settlements under way within bounds. Of all that the queue can be asked, only the request for another
// message waits until it has done what it was told before.
func (r *reader) settle(ctx context.Context, f func() error) error {
	if r.under++; r.under > pipelined {
		d, ok, err := r.one(ctx)
		if err != nil {
			return err
		}
		if ok {
			r.spare = append(r.spare, d)
			r.seen++
			r.open++
			r.again = d.Redelivered
		}
		r.under = 1
	}
	return f()
}
