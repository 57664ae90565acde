package consume

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// open finds out which queue is consumed on this channel.
func (g *generation) open(ctx context.Context) (err error) {
	if g.cfg.Open == nil {
		return nil
	}
	g.queue, err = call(g, func() (string, error) { return g.cfg.Open(ctx, g.ch) })
	return err
}

// look tells Watch how the queue is, and returns when to do so again.
func (g *generation) look() (next time.Duration, err error) {
	asked := time.Now()
	q, err := call(g, func() (amqp.Queue, error) { return g.ch.QueueDeclarePassive(g.queue, false, false, false, false, nil) })
	if err != nil {
		return 0, fmt.Errorf("consume: look at %q: %w", g.queue, err)
	}
	return g.cfg.Watch(q, asked), nil
}
