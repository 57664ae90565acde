package consistenthash

import (
	"context"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
)

// declareNow puts the partitions on the broker, for a publish.
func (p Partitions) declareNow(ctx context.Context, conn *reconnect.Conn) error {
	for _, step := range p.steps() {
		if err := conn.Declare(ctx, step); err != nil {
			return p.explain(err)
		}
	}
	return nil
}

// declareSupervised puts the partitions on the broker, for a consumer: it goes on asking for what may come by itself, and shows
// meanwhile why it waits.
func (p Partitions) declareSupervised(ctx context.Context, conn *reconnect.Conn) error {
	for _, step := range p.steps() {
		err := conn.Supervise(ctx, p.Name, step, func(context.Context, *amqp.Channel) error { return nil })
		if err != nil || ctx.Err() != nil {
			return err
		}
	}
	return nil
}
