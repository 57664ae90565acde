package workqueue

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/backoff"
	"github.com/warrenmq/warren/internal/codec"
	"github.com/warrenmq/warren/internal/wire"
	"github.com/warrenmq/warren/reconnect"
)

const (
	drainWindow = 200                    // messages on their way at a time
	drainIdle   = 50 * time.Millisecond  // after which a batch is complete
	drainAgain  = 500 * time.Millisecond // before what a full queue refused is sent again
	drainSingle = 28                     // acknowledgements that are certain to arrive before the channel is closed: a quorum queue's client takes 32
)

// drain moves what is ready in one queue to another, in its order: a message is acknowledged when its copy is confirmed. It
// ends when nothing is ready any more, and returns how many it moved. A queue that is not there is empty.
//
// It gives its consumer up only by closing the channel, so that nobody ever sees the queue without a consumer while a
// message is in its hands.
func (m *mover) drain(ctx context.Context, from, to string) (moved int, err error) {
	err = m.conn.Supervise(ctx, "move "+from, reconnect.Topology{}, func(ctx context.Context, ch *amqp.Channel) error {
		return m.pump(ctx, ch, from, to, &moved)
	})
	if err == nil {
		err = context.Cause(ctx)
	}
	return moved, err
}

func (m *mover) pump(ctx context.Context, ch *amqp.Channel, from, to string, moved *int) (err error) {
	if _, err := m.conn.Inspect(ctx, from); isRefused(err, amqp.NotFound) {
		return nil
	}
	if err := ch.Qos(drainWindow, 0, false); err != nil {
		return err
	}
	deliveries, err := ch.Consume(from, "move-"+rand.Text(), false, false, false, false, nil)
	if isRefused(err, amqp.AccessRefused) {
		return codec.Permanent(err)
	}
	if err != nil {
		return err
	}
	acks := 0
	defer func() {
		if acks > drainSingle && ctx.Err() == nil && (err == nil || !ch.IsClosed()) {
			err = errors.Join(err, arrived(ch, from))
		}
	}()
	for {
		batch, err := gather(ctx, deliveries)
		if err != nil {
			return err
		}
		if len(batch) == 0 { // nothing is in our hands, which would count as returned when we leave
			q, err := m.conn.Inspect(ctx, from)
			if err != nil || q.Messages == 0 {
				return err
			}
			continue
		}
		n, err := m.forward(ctx, ch, batch, to, &acks)
		*moved += n
		if err != nil {
			return err
		}
	}
}

// arrived makes sure that the acknowledgements have been carried out: the close of the channel does not say so, but a quorum queue has
// done so when a consumer begins, and the last of them while the broker answers what is asked next. What that consumer gets goes back
// with the channel, like everything.
func arrived(ch *amqp.Channel, queue string) error {
	if err := ch.Qos(1, 0, false); err != nil {
		return err
	}
	if _, err := ch.Consume(queue, "moved-"+rand.Text(), false, false, false, false, nil); err != nil {
		return err
	}
	return ch.Qos(1, 0, false)
}

// gather takes what comes, until the window is full or nothing came for a while.
func gather(ctx context.Context, deliveries <-chan amqp.Delivery) (batch []amqp.Delivery, err error) {
	idle := time.NewTimer(drainIdle)
	defer idle.Stop()
	for len(batch) < drainWindow {
		select {
		case d, ok := <-deliveries:
			if !ok {
				return nil, fmt.Errorf("channel lost: %w", amqp.ErrClosed)
			}
			batch = append(batch, d)
			idle.Reset(drainIdle)
		case <-idle.C:
			return batch, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return batch, nil
}

// forward publishes a batch, which is all that is unacknowledged, and again what a full queue refused, acknowledges what is
// confirmed, counts that in acks, and returns how many messages it is. It names the first message that could not be published for another reason; only
// those that could not stay.
func (m *mover) forward(ctx context.Context, ch *amqp.Channel, batch []amqp.Delivery, to string, acks *int) (moved int, err error) {
	for {
		msgs := make([]reconnect.Message, len(batch))
		for i, d := range batch {
			msgs[i] = reconnect.Message{Key: to, Publishing: wire.Copy(d)}
		}
		err := m.pub.PublishBatch(ctx, msgs)
		var each reconnect.BatchError
		switch {
		case err == nil:
			each = make(reconnect.BatchError, len(batch))
		case !errors.As(err, &each):
			return moved, err
		}
		n, err := acknowledge(ch, batch, each)
		*acks += n
		if err != nil {
			return moved, err
		}
		var refused []amqp.Delivery
		var fault error
		for i, err := range each {
			switch {
			case err == nil:
				moved++
			case errors.Is(err, reconnect.ErrRefused):
				refused = append(refused, batch[i])
			case fault == nil:
				fault = fmt.Errorf("message %q: %w", batch[i].MessageId, err)
			}
		}
		if fault != nil || len(refused) == 0 {
			return moved, fault
		}
		batch = refused
		if err := backoff.Sleep(ctx, drainAgain); err != nil {
			return moved, err
		}
	}
}

// acknowledge acknowledges those of the batch, which is all that is unacknowledged, that have no error: the first ones in one go, the others
// singly. It returns how many acknowledgements that took.
func acknowledge(ch *amqp.Channel, batch []amqp.Delivery, each []error) (acks int, err error) {
	first := 0
	for first < len(batch) && each[first] == nil {
		first++
	}
	if first > 0 {
		acks++
		if err := ch.Ack(batch[first-1].DeliveryTag, true); err != nil {
			return acks, err
		}
	}
	for i := first; i < len(batch); i++ {
		if each[i] != nil {
			continue
		}
		acks++
		if err := ch.Ack(batch[i].DeliveryTag, false); err != nil {
			return acks, err
		}
	}
	return acks, nil
}
