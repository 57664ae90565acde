package main

import (
	"context"
	"errors"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/pubsub"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

// rawPrefetch is what the raw side takes where ours takes its default.
const rawPrefetch = 100

// deliveries consumes the queue on a channel of its own.
func (s spec) deliveries(conn *amqp.Connection, prefetch int) (*amqp.Channel, <-chan amqp.Delivery, error) {
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Qos(prefetch, 0, false)
	}
	if err != nil {
		return nil, nil, err
	}
	in, err := ch.Consume(s.Queue, "", false, false, false, false, nil)
	return ch, in, err
}

// consumeRaw takes messages on one channel, and acknowledges each by itself.
func consumeRaw(ctx context.Context, s spec, conn *amqp.Connection) (figures, error) {
	prefetch := s.Prefetch
	if prefetch == 0 {
		prefetch = rawPrefetch
	}
	_, in, err := s.deliveries(conn, prefetch)
	if err != nil {
		return figures{}, err
	}
	c := newCounter(s.Messages)
	for range s.Callers {
		go func() { // until the connection is closed
			for d := range in {
				if d.Ack(false) != nil {
					return
				}
				c.one()
			}
		}()
	}
	return c.wait(ctx)
}

// consumeWideRaw has as much unacknowledged on its channel as our workers have together on theirs.
func consumeWideRaw(ctx context.Context, s spec, conn *amqp.Connection) (figures, error) {
	s.Prefetch *= s.Callers
	return consumeRaw(ctx, s, conn)
}

func workOurs(ctx context.Context, s spec, conn *reconnect.Conn) (figures, error) {
	c := newCounter(s.Messages)
	w, err := workqueue.NewWorker(conn, s.workQueue(), c.handle, workqueue.WorkerConfig{Concurrency: s.Callers, Prefetch: s.Prefetch})
	if err != nil {
		return figures{}, err
	}
	return during(ctx, w, c.wait)
}

// subscribeOurs is a durable subscription with all defaults.
func subscribeOurs(ctx context.Context, s spec, conn *reconnect.Conn) (figures, error) {
	c := newCounter(s.Messages)
	sub, err := pubsub.NewSubscriber(conn, s.subscription(), c.handle, pubsub.SubscriberConfig{})
	if err != nil {
		return figures{}, err
	}
	return during(ctx, sub, c.wait)
}

// handle is a handler that does nothing else.
func (c *counter) handle(context.Context, amqp.Delivery) error { c.one(); return nil }

// workQueue is the queue of a run, which is there.
func (s spec) workQueue() workqueue.Queue {
	return workqueue.Queue{Name: s.Queue, Classic: s.Classic, Declare: reconnect.Skip}
}

func (s spec) subscription() pubsub.Subscription {
	return pubsub.Subscription{Exchange: pubsub.Exchange{Name: s.Exchange}, Queue: s.Queue}
}

// during runs a consumer while f measures. f's context ends when the consumer fails.
func during(ctx context.Context, consumer interface{ Run(context.Context) error }, f func(context.Context) (figures, error)) (figures, error) {
	ctx, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		defer stop()
		done <- consumer.Run(ctx)
	}()
	found, err := f(ctx)
	stop()
	return found, errors.Join(err, <-done)
}
