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

func (m *mover) pump(ctx context.Context, ch *amqp.Channel, from, to string, moved *int) error {
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
		n, err := m.forward(ctx, ch, batch, to)
		*moved += n
		if err != nil {
			return err
		}
	}
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

// forward publishes a batch, and again what a full queue refused, acknowledges what is confirmed and returns how much that is.
// It names the first message that could not be published for another reason; only those that could not stay.
func (m *mover) forward(ctx context.Context, ch *amqp.Channel, batch []amqp.Delivery, to string) (moved int, err error) {
	for all := true; ; all = false {
		msgs := make([]reconnect.Message, len(batch))
		for i, d := range batch {
			msgs[i] = reconnect.Message{Key: to, Publishing: wire.Copy(d)}
		}
		err := m.pub.PublishBatch(ctx, msgs)
		var each reconnect.BatchError
		switch {
		case err == nil && all: // in one go: a quorum queue that is sent hundreds of single ones forgets some when the channel is closed
			return len(batch), ch.Ack(batch[len(batch)-1].DeliveryTag, true)
		case err == nil:
			each = make(reconnect.BatchError, len(batch))
		case !errors.As(err, &each):
			return moved, err
		}
		var refused []amqp.Delivery
		var fault error
		for i, err := range each {
			switch {
			case err == nil:
				moved++
				if err := ch.Ack(batch[i].DeliveryTag, false); err != nil {
					return moved, err
				}
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
