package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
)

const (
	window    = 256  // of unconfirmed messages in a raw batch; ours has it by default
	batchSize = 5000 // messages a call
)

var errUnconfirmed = errors.New("not confirmed")

// rawChannel is the driver used well by hand: one channel with confirms that all share, publishing under a lock, waiting
// outside of it, messages persistent and mandatory.
type rawChannel struct {
	ch    *amqp.Channel
	queue string
	body  []byte
	mu    sync.Mutex
}

func (s spec) rawChannel(conn *amqp.Connection) (*rawChannel, error) {
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Confirm(false)
	}
	if err != nil {
		return nil, err
	}
	go func() {
		for range ch.NotifyReturn(make(chan amqp.Return, 1)) {
			panic("a message was returned")
		}
	}()
	return &rawChannel{ch: ch, queue: s.Queue, body: make([]byte, s.Size)}, nil
}

func (c *rawChannel) send(body []byte) (*amqp.DeferredConfirmation, error) {
	id, err := uuid.NewV7() // what a Publisher makes, too
	if err != nil {
		return nil, err
	}
	msg := amqp.Publishing{MessageId: id.String(), Timestamp: time.Now(), DeliveryMode: amqp.Persistent, Body: body}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ch.PublishWithDeferredConfirm("", c.queue, true, false, msg)
}

func (c *rawChannel) publish(body []byte) error {
	confirm, err := c.send(body)
	if err == nil && !confirm.Wait() {
		err = errUnconfirmed
	}
	return err
}

// batch publishes n messages with a window of unconfirmed ones.
func (c *rawChannel) batch(n int) error {
	pending := make([]*amqp.DeferredConfirmation, window)
	for i := range n + window {
		at := i % window
		if pending[at] != nil && !pending[at].Wait() {
			return errUnconfirmed
		}
		pending[at] = nil
		if i < n {
			confirm, err := c.send(c.body)
			if err != nil {
				return err
			}
			pending[at] = confirm
		}
	}
	return nil
}

func publishRaw(ctx context.Context, s spec, conn *amqp.Connection) (figures, error) {
	c, err := s.rawChannel(conn)
	if err != nil {
		return figures{}, err
	}
	return s.calls(ctx, func(context.Context) (int, error) { return 1, c.publish(c.body) })
}

func publishOurs(ctx context.Context, s spec, conn *reconnect.Conn) (figures, error) {
	p, err := conn.NewPublisher(reconnect.PublisherConfig{})
	if err != nil {
		return figures{}, err
	}
	body := make([]byte, s.Size)
	return s.calls(ctx, func(ctx context.Context) (int, error) {
		return 1, p.Publish(ctx, "", s.Queue, amqp.Publishing{Body: body})
	})
}

func batchRaw(ctx context.Context, s spec, conn *amqp.Connection) (figures, error) {
	c, err := s.rawChannel(conn)
	if err != nil {
		return figures{}, err
	}
	return s.batches(ctx, func(context.Context) error { return c.batch(batchSize) })
}

func batchOurs(ctx context.Context, s spec, conn *reconnect.Conn) (figures, error) {
	p, err := conn.NewPublisher(reconnect.PublisherConfig{})
	if err != nil {
		return figures{}, err
	}
	batch := s.batchOf(batchSize)
	return s.batches(ctx, func(ctx context.Context) error { return p.PublishBatch(ctx, batch) })
}

// batches measures publish, which publishes batchSize messages. How long such a call takes says no more than the rate does.
func (s spec) batches(ctx context.Context, publish func(context.Context) error) (figures, error) {
	f, err := s.calls(ctx, func(ctx context.Context) (int, error) { return batchSize, publish(ctx) })
	f.P50, f.P99 = 0, 0
	return f, err
}

func (s spec) batchOf(n int) []reconnect.Message {
	body := make([]byte, s.Size)
	batch := make([]reconnect.Message, n)
	for i := range batch {
		batch[i] = reconnect.Message{Key: s.Queue, Publishing: amqp.Publishing{Body: body}}
	}
	return batch
}
