package consistenthash

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
)

const (
	moveWindow = 200                   // messages on their way at a time
	moveIdle   = 50 * time.Millisecond // after which a batch is complete, and a queue may be empty
	moveStuck  = 10 * time.Second      // after which messages that are there and do not come are somebody else's
	moveTag    = "resize"
)

// address says where a message goes.
type address func(d amqp.Delivery) (reconnect.Message, error)

// move puts all messages of a queue where they belong, in their order: a message is acknowledged when its copy is confirmed. It returns
// how many they were.
func (r *resize) move(ctx context.Context, queue string, to address) (moved int, err error) {
	for {
		left, err := r.conn.Inspect(ctx, queue)
		switch {
		case isMissing(err):
			return moved, nil
		case err != nil:
			return moved, err
		case left.Messages == 0:
			return moved, nil
		}
		err = r.conn.Supervise(ctx, queue, reconnect.Topology{}, func(ctx context.Context, ch *amqp.Channel) error {
			return r.pump(ctx, ch, queue, to, &moved)
		})
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return moved, err
		}
	}
}

// pump moves until the queue is empty. It asks for the messages that are there rather than waits for some time: returned ones may be
// a moment on their way.
func (r *resize) pump(ctx context.Context, ch *amqp.Channel, queue string, to address, moved *int) error {
	if err := ch.Qos(moveWindow, 0, false); err != nil {
		return err
	}
	deliveries, err := ch.Consume(queue, moveTag, false, false, false, false, nil)
	if err != nil {
		return err
	}
	last := time.Now()
	for {
		batch, err := gather(ctx, deliveries)
		if err != nil {
			return err
		}
		if len(batch) > 0 {
			if err := r.forward(ctx, batch, to); err != nil {
				return err
			}
			*moved += len(batch)
			if err := ch.Ack(batch[len(batch)-1].DeliveryTag, true); err != nil {
				return err
			}
			last = time.Now()
			continue
		}
		left, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		switch {
		case err != nil:
			return err
		case left.Messages == 0:
			return nil
		case time.Since(last) > moveStuck:
			return fmt.Errorf("queue %q: its %d messages do not come: is it consumed? stop all consumers and publishers first", queue, left.Messages)
		}
	}
}

// gather takes what comes, until the window is full or nothing came for a while.
func gather(ctx context.Context, deliveries <-chan amqp.Delivery) (batch []amqp.Delivery, err error) {
	idle := time.NewTimer(moveIdle)
	defer idle.Stop()
	for len(batch) < moveWindow {
		select {
		case d, ok := <-deliveries:
			if !ok {
				return nil, errors.New("consistenthash: channel lost")
			}
			batch = append(batch, d)
			idle.Reset(moveIdle)
		case <-idle.C:
			return batch, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return batch, nil
}

// forward publishes the batch. The first message that cannot be is named.
func (r *resize) forward(ctx context.Context, batch []amqp.Delivery, to address) error {
	msgs := make([]reconnect.Message, len(batch))
	for i, d := range batch {
		m, err := to(d)
		if err != nil {
			return err
		}
		msgs[i] = m
	}
	err := r.pub.PublishBatch(ctx, msgs)
	var each reconnect.BatchError
	if errors.As(err, &each) {
		for i, err := range each {
			if err != nil {
				return fmt.Errorf("message %q with key %q: %w", batch[i].MessageId, keyOf(batch[i]), err)
			}
		}
	}
	return err
}
