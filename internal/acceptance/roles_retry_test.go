package acceptance

import (
	"context"
	"fmt"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/retry"
	"github.com/warrenmq/warren/workqueue"
)

func retryRoles() []role {
	policy := func(n, dlx string) retry.Policy {
		p := retry.Policy{MaxAttempts: 2, InitialDelay: 100 * time.Millisecond}
		if dlx != "" {
			p.DeadLetterExchange = n + dlx
		}
		return p
	}
	queue := func(n string) workqueue.Queue {
		return workqueue.Queue{Name: n, NoDeadLetter: true, Declare: reconnect.Passive}
	}
	put := func(c *cast, n string) error {
		p, err := workqueue.NewProducer(c.operator, queue(n), reconnect.PublisherConfig{})
		if err != nil {
			return err
		}
		return p.Publish(c.ctx, message)
	}
	// around is a Retrier around a passive worker, until a message has come a second time.
	around := func(dlx string) func(*cast, string) error {
		return func(c *cast, n string) error {
			if err := c.operate(reconnect.Passive, workqueue.Queue{Name: n, NoDeadLetter: true}.Topology()); err != nil {
				return err
			}
			r, err := retry.New(c.ctx, c.user, n, policy(n, dlx))
			if err != nil {
				return err
			}
			again := make(chan struct{}, 10)
			w, err := workqueue.NewWorker(c.user, queue(n), r.Handle(func(_ context.Context, d amqp.Delivery) error {
				if retry.InfoOf(d).Attempt > 1 {
					again <- struct{}{}
				}
				return errFailed
			}), workqueue.WorkerConfig{})
			return c.consume(w, err, again, func() error { return put(c, n) })
		}
	}
	// tool does all that DeadLetters can do, with two letters.
	tool := func(send bool) func(*cast, string) error {
		return func(c *cast, n string) error {
			t := workqueue.Queue{Name: n}.Topology()
			if err := c.operate(reconnect.Passive, t); err != nil {
				return err
			}
			pub, err := c.operator.NewPublisher(reconnect.PublisherConfig{})
			if err != nil {
				return err
			}
			for range 2 {
				if err := pub.Publish(c.ctx, "", n+".dlq", message); err != nil {
					return fmt.Errorf("the operator: %w", err)
				}
			}
			letters, err := retry.NewDeadLetters(c.user, n)
			if err != nil {
				return err
			}
			return useTool(c.ctx, letters, send)
		}
	}
	plain := func(n string) []right {
		return slices.Concat(read(n), configure(n+".dlq", n+".retry.100"), read(n+".retry.100"), write(defaultExchange))
	}
	own := func(n string) []right {
		return slices.Concat(configure(n+".dlq", n+".retry.100", n+".dlx"), write(n, n+".dlq", n+".retry.100", n+".dlx"),
			read(n, n+".retry.100", n+".dlx"))
	}
	return []role{
		{"retry/around a worker", plain, around("")},
		{"retry/around a worker, with an own exchange", own, around(".dlx")},
		{"retry/dead letters, to look and to discard", func(n string) []right { return append(configure(n+".dlq"), read(n+".dlq")...) }, tool(false)},
		{"retry/dead letters, to send back", func(n string) []right {
			return slices.Concat(configure(n+".dlq"), read(n+".dlq"), write(defaultExchange))
		}, tool(true)},
	}
}

func useTool(ctx context.Context, letters *retry.DeadLetters, send bool) error {
	if _, err := letters.Count(ctx); err != nil {
		return err
	}
	for _, err := range letters.All(ctx) {
		if err != nil {
			return err
		}
	}
	if send {
		if _, err := letters.Redrive(ctx, retry.Selection{Limit: 1}); err != nil {
			return err
		}
	}
	_, err := letters.Discard(ctx, retry.Selection{})
	return err
}
