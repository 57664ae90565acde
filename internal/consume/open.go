package consume

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// open finds out which queue is consumed on this channel.
func (g *generation) open(ctx context.Context) error {
	if g.cfg.Open == nil {
		return nil
	}
	type opened struct {
		queue string
		shut  func()
	}
	o, err := call(g, func() (opened, error) {
		queue, shut, err := g.cfg.Open(ctx, g.ch)
		return opened{queue, shut}, err
	})
	if err == nil {
		g.queue, g.shut = o.queue, o.shut
	}
	return err
}

// firstLook is when to look at the queue first: at once, and only by one of the workers.
func (g *generation) firstLook() <-chan time.Time {
	if g.cfg.Watch == nil || g.w.index != 0 {
		return nil
	}
	return time.After(0)
}

// look tells Watch how the queue is, and returns when to do so again.
func (g *generation) look() (next time.Duration, err error) {
	asked := time.Now()
	q, err := call(g, func() (amqp.Queue, error) { return g.ch.QueueDeclarePassive(g.queue, false, false, false, false, nil) })
	if err != nil {
		return 0, fmt.Errorf("look at %q: %w", g.queue, err)
	}
	return g.cfg.Watch(q, asked), nil
}
