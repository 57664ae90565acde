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
	s    spec
	ch   *amqp.Channel
	body []byte
	mu   sync.Mutex
}

func (s spec) rawChannel() (*rawChannel, func() error, error) {
	conn, err := s.dialRaw()
	if err != nil {
		return nil, nil, err
	}
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Confirm(false)
	}
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	go func() {
		for range ch.NotifyReturn(make(chan amqp.Return, 1)) {
			panic("a message was returned")
		}
	}()
	return &rawChannel{s: s, ch: ch, body: make([]byte, s.Size)}, conn.Close, nil
}

func (c *rawChannel) send(body []byte) (*amqp.DeferredConfirmation, error) {
	id, err := uuid.NewV7() // what a Publisher makes, too
	if err != nil {
		return nil, err
	}
	msg := amqp.Publishing{MessageId: id.String(), Timestamp: time.Now(), DeliveryMode: amqp.Persistent, Body: body}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ch.PublishWithDeferredConfirm("", c.s.Queue, true, false, msg)
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

func publishRaw(ctx context.Context, s spec) (figures, error) {
	c, closing, err := s.rawChannel()
	if err != nil {
		return figures{}, err
	}
	f, err := s.calls(ctx, func(context.Context) (int, error) { return 1, c.publish(c.body) })
	return f, errors.Join(err, closing())
}

func batchRaw(ctx context.Context, s spec) (figures, error) {
	c, closing, err := s.rawChannel()
	if err != nil {
		return figures{}, err
	}
	f, err := s.calls(ctx, func(context.Context) (int, error) { return batchSize, c.batch(batchSize) })
	f.P50, f.P99 = 0, 0
	return f, errors.Join(err, closing())
}

// publisherDefaults are what ours is measured with.
var publisherDefaults reconnect.PublisherConfig

// publisher is ours.
func (s spec) publisher(ctx context.Context) (*reconnect.Publisher, func() error, error) {
	conn, err := s.dialOurs(ctx)
	if err != nil {
		return nil, nil, err
	}
	p, err := conn.NewPublisher(publisherDefaults)
	return p, func() error { return conn.Close(context.Background()) }, err
}

func publishOurs(ctx context.Context, s spec) (figures, error) {
	p, closing, err := s.publisher(ctx)
	if err != nil {
		return figures{}, err
	}
	body := make([]byte, s.Size)
	f, err := s.calls(ctx, func(ctx context.Context) (int, error) {
		return 1, p.Publish(ctx, "", s.Queue, amqp.Publishing{Body: body})
	})
	return f, errors.Join(err, closing())
}

func batchOurs(ctx context.Context, s spec) (figures, error) {
	p, closing, err := s.publisher(ctx)
	if err != nil {
		return figures{}, err
	}
	batch := make([]reconnect.Message, batchSize)
	for i := range batch {
		batch[i] = reconnect.Message{Key: s.Queue, Publishing: amqp.Publishing{Body: make([]byte, s.Size)}}
	}
	f, err := s.calls(ctx, func(ctx context.Context) (int, error) { return batchSize, p.PublishBatch(ctx, batch) })
	f.P50, f.P99 = 0, 0
	return f, errors.Join(err, closing())
}
