package consistenthash

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
)

const (
	moveWindow = 200                   // messages on their way at a time
	moveIdle   = 50 * time.Millisecond // after which a batch is complete
	moveStuck  = time.Minute           // after which messages that do not come are somebody else's; above three heartbeats
)

// endHeader marks the message behind the last one to move.
const endHeader = "warren-resize-end"

// address says where a message goes.
type address func(d amqp.Delivery) reconnect.Message

// move puts all messages of a queue where they belong, in their order: a message is acknowledged when its copy is confirmed. It returns
// how many they were. A queue that does not exist is empty.
//
// That nothing is ready in a queue does not say that it is empty: an earlier call, or a consumer, may just be gone, and what it had
// in hand not returned yet. So a mark is sent behind all messages. The queue has a single active consumer: when we are that,
// nobody else has anything in hand, and what was returned comes first. So when the mark comes, everything has come.
func (r *resize) move(ctx context.Context, queue string, to address) (moved int, err error) {
	exists, err := r.exists(ctx, queue)
	if err != nil || !exists {
		return 0, err
	}
	err = r.conn.Supervise(ctx, queue, reconnect.Topology{}, func(ctx context.Context, ch *amqp.Channel) error {
		return r.pump(ctx, ch, queue, rand.Text(), to, &moved)
	})
	if err == nil {
		err = context.Cause(ctx)
	}
	return moved, err
}

// pump moves until its mark comes. Marks of others are of calls that were interrupted; a second one of its own, which is sent again
// when its connection is lost, is right behind the first, and must not stay: it would be somebody's message.
func (r *resize) pump(ctx context.Context, ch *amqp.Channel, queue, mark string, to address, moved *int) error {
	if err := ch.Qos(moveWindow, 0, false); err != nil {
		return err
	}
	deliveries, err := ch.Consume(queue, "resize-"+rand.Text(), false, false, false, false, nil)
	if err != nil {
		return err
	}
	if err := r.pub.Publish(ctx, "", queue, amqp.Publishing{Headers: amqp.Table{endHeader: mark}}); err != nil {
		return fmt.Errorf("mark the end of queue %q: %w", queue, err)
	}
	since, ended := time.Now(), false
	for {
		batch, err := gather(ctx, deliveries)
		if err != nil {
			return err
		}
		if len(batch) == 0 {
			if ended {
				return nil
			}
			if time.Since(since) > moveStuck {
				return fmt.Errorf("queue %q: its messages do not come: is it consumed? stop all consumers and publishers first", queue)
			}
			continue
		}
		since = time.Now()
		n, last, err := r.forward(ctx, batch, mark, to)
		*moved += n
		ended = ended || last
		if err == nil {
			err = ch.Ack(batch[len(batch)-1].DeliveryTag, true)
		}
		if err != nil || ended && len(batch) < moveWindow {
			return err
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
				return nil, fmt.Errorf("consistenthash: channel lost: %w", amqp.ErrClosed)
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

// forward publishes what of the batch is to be moved, and reports whether the mark was in it. It names the first message that could not
// be published.
func (r *resize) forward(ctx context.Context, batch []amqp.Delivery, mark string, to address) (moved int, ended bool, err error) {
	var msgs []reconnect.Message
	for _, d := range batch {
		if m, ok := d.Headers[endHeader]; ok {
			ended = ended || m == mark
			continue
		}
		msgs = append(msgs, to(d))
	}
	if len(msgs) == 0 {
		return 0, ended, nil
	}
	err = r.pub.PublishBatch(ctx, msgs)
	if err == nil {
		return len(msgs), ended, nil
	}
	var each reconnect.BatchError
	if errors.As(err, &each) {
		for i, err := range each {
			if err != nil {
				return 0, false, fmt.Errorf("message %q with key %q: %w", msgs[i].MessageId, msgs[i].Headers[keyHeader], err)
			}
		}
	}
	return 0, false, err
}
