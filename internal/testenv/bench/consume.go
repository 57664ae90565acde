package main

import (
	"context"
	"errors"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/pubsub"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

// rawPrefetch is what the raw side takes where ours takes its default.
const rawPrefetch = 100

// consumeRaw takes messages on one channel, and acknowledges each by itself.
func consumeRaw(ctx context.Context, s spec) (figures, error) {
	conn, err := s.dialRaw()
	if err != nil {
		return figures{}, err
	}
	ch, err := conn.Channel()
	if err != nil {
		return figures{}, errors.Join(err, conn.Close())
	}
	prefetch := s.Prefetch
	if prefetch == 0 {
		prefetch = rawPrefetch
	}
	if err := ch.Qos(prefetch, 0, false); err != nil {
		return figures{}, errors.Join(err, conn.Close())
	}
	in, err := ch.Consume(s.Queue, "", false, false, false, false, nil)
	if err != nil {
		return figures{}, errors.Join(err, conn.Close())
	}
	c := newCounter(s.Messages)
	var wg sync.WaitGroup
	for range s.Callers {
		wg.Go(func() {
			for d := range in {
				if d.Ack(false) != nil {
					return
				}
				c.one()
			}
		})
	}
	f, err := c.wait(ctx)
	err = errors.Join(err, conn.Close())
	wg.Wait()
	return f, err
}

// runner is what has a Run.
type runner interface{ Run(context.Context) error }

// consumeOurs runs a consumer until it has handled all messages.
func consumeOurs(ctx context.Context, messages int, with func(handle workqueue.Handler) (runner, error)) (figures, error) {
	c := newCounter(messages)
	r, err := with(func(context.Context, amqp.Delivery) error { c.one(); return nil })
	if err != nil {
		return figures{}, err
	}
	life, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- r.Run(life) }()
	f, err := c.wait(ctx)
	stop()
	return f, errors.Join(err, <-done)
}

func workOurs(ctx context.Context, s spec) (figures, error) {
	conn, err := s.dialOurs(ctx)
	if err != nil {
		return figures{}, err
	}
	f, err := consumeOurs(ctx, s.Messages, func(h workqueue.Handler) (runner, error) {
		return workqueue.NewWorker(conn, s.workQueue(), h, workqueue.WorkerConfig{Concurrency: s.Callers, Prefetch: s.Prefetch})
	})
	return f, errors.Join(err, conn.Close(context.Background()))
}

// workQueue is the queue of a run, which is there.
func (s spec) workQueue() workqueue.Queue {
	return workqueue.Queue{Name: s.Queue, Classic: s.Classic, Declare: reconnect.Skip}
}

// subscribeOurs is a durable subscription with all defaults.
func subscribeOurs(ctx context.Context, s spec) (figures, error) {
	conn, err := s.dialOurs(ctx)
	if err != nil {
		return figures{}, err
	}
	f, err := consumeOurs(ctx, s.Messages, func(h workqueue.Handler) (runner, error) {
		return pubsub.NewSubscriber(conn, pubsub.Subscription{Exchange: pubsub.Exchange{Name: s.Exchange}, Queue: s.Queue}, h, pubsub.SubscriberConfig{})
	})
	return f, errors.Join(err, conn.Close(context.Background()))
}
