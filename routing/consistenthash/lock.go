package consistenthash

import (
	"context"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
)

// alone runs f while no other Resize of these partitions runs, and again when it cannot be sure of that any more: it lost its
// connection, or the lock on it. Two at once would move each other's messages, and the first to end would delete the queue in between
// with what the other had put there: up to 240 of 1200 messages were lost.
//
// The lock is an exclusive queue, which keeps other connections out and goes with its own, and an exclusive consumer on it, which keeps
// out other calls on the same one. Who comes second waits.
func (r *resize) alone(ctx context.Context, f func(context.Context) error) error {
	lock := reconnect.Queue{Name: r.between() + ".lock", Exclusive: true}
	var last error
	done := false
	err := r.conn.Supervise(ctx, lock.Name, reconnect.Topology{Queues: []reconnect.Queue{lock}}, func(ctx context.Context, ch *amqp.Channel) error {
		if _, err := ch.Consume(lock.Name, lock.Name, false, true, false, false, nil); err != nil {
			return err
		}
		defer release(ch, lock.Name)
		last = f(ctx)
		done = last == nil
		return last
	})
	switch {
	case done:
		return nil
	case err == nil && last != nil: // ctx has ended
		return last
	case err == nil:
		return fmt.Errorf("not begun, for want of a connection or because another call is under way: %w", context.Cause(ctx))
	}
	return err
}

// release deletes the lock, which would otherwise be held for as long as the connection lives. Its consumer goes first: one that the
// broker cancels counts as a lost channel.
func release(ch *amqp.Channel, lock string) {
	if ch.Cancel(lock, false) == nil {
		_, _ = ch.QueueDelete(lock, false, false, false)
	}
}
