package consistenthash

import (
	"context"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/report"
)

// balanceEvery is about the time between two comparisons. It is varied, so that the instances do not all move at once.
const balanceEvery = 2 * time.Second

// balance counts this instance among the others and keeps it to its share, until ctx ends.
//
// A queue with a single active consumer gives all its messages to the first in line, and the instance that starts first is that at
// every queue. So each instance also holds one consumer on the queue that remembers Count, and the number of its consumers is the number
// of instances. Who is active on more than its share of the partitions, rounded up, gives the rest back, to whoever is next in line. The
// shares add up to Count at least, so moves come to an end, and while the number of instances stays there are no others.
func (c *Consumer) balance(ctx context.Context, counted chan struct{}) error {
	first := true
	return c.conn.Supervise(ctx, c.partitions.guard(), c.partitions.guardTopology(), func(ctx context.Context, ch *amqp.Channel) error {
		for ctx.Err() == nil {
			paused, changed := c.pause()
			if paused { // it takes no share
				report.State(ctx, report.Paused, "")
				select {
				case <-changed:
				case <-ctx.Done():
				}
				continue
			}
			tag := "instance-" + rand.Text()
			deliveries, err := ch.Consume(c.partitions.guard(), tag, false, false, false, false, nil)
			if err != nil {
				return err
			}
			report.State(ctx, report.Consuming, "")
			if first {
				first = false
				close(counted)
			}
			if err := c.compare(ctx, deliveries, changed); err != nil {
				return err
			}
			if err := ch.Cancel(tag, false); err != nil {
				return err
			}
		}
		return nil
	})
}

// errNotCounted is how the loss of the consumer is told; that of its channel is the reason in all but rare cases, and in those the
// supervision knows better.
var errNotCounted = fmt.Errorf("consistenthash: no longer counted among the instances: %w", amqp.ErrClosed)

// compare compares again and again, until ctx ends, the pause has changed, or the consumer is lost.
func (c *Consumer) compare(ctx context.Context, deliveries <-chan amqp.Delivery, changed <-chan struct{}) error {
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		next.Reset(balanceEvery/2 + mathrand.N(balanceEvery))
		select {
		case <-next.C:
			c.compareOnce(ctx)
		case _, ok := <-deliveries: // a message on this queue is somebody's mistake, and stays there
			if !ok {
				return errNotCounted
			}
		case <-changed:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

func (c *Consumer) compareOnce(ctx context.Context) {
	queue, err := c.conn.Inspect(ctx, c.partitions.guard())
	if err != nil {
		return // the link's state says it, and the next time is soon
	}
	var active []*partition
	for _, part := range c.parts {
		if part.isActive() {
			active = append(active, part)
		}
	}
	above := len(active) - share(len(c.parts), queue.Consumers)
	// In random order, so that instances cannot pass the same ones around in a circle.
	for _, i := range mathrand.Perm(len(active)) {
		if above <= 0 {
			return
		}
		if active[i].giveBack() {
			above--
		}
	}
}

// share is how many of the partitions an instance may be active on.
func share(partitions, instances int) int {
	instances = max(1, instances)
	return (partitions + instances - 1) / instances
}
