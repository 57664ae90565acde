package main

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/rpc"
)

// callTimeout is what both sides give a call.
const callTimeout = 10 * time.Second

// rawCaller is a client as articles have it: one channel, and a mutex around registering and publishing.
type rawCaller struct {
	ch      *amqp.Channel
	mode    uint8
	mu      sync.Mutex
	pending map[string]chan amqp.Delivery
}

func callPersistent(ctx context.Context, s spec) (figures, error) {
	return callRaw(ctx, s, amqp.Persistent)
}
func callTransient(ctx context.Context, s spec) (figures, error) {
	return callRaw(ctx, s, amqp.Transient)
}

func callRaw(ctx context.Context, s spec, mode uint8) (figures, error) {
	conn, err := s.dialRaw()
	if err != nil {
		return figures{}, err
	}
	ch, err := conn.Channel()
	if err != nil {
		return figures{}, errors.Join(err, conn.Close())
	}
	replies, err := ch.Consume("amq.rabbitmq.reply-to", "", true, false, false, false, nil)
	if err != nil {
		return figures{}, errors.Join(err, conn.Close())
	}
	c := &rawCaller{ch: ch, mode: mode, pending: map[string]chan amqp.Delivery{}}
	go c.receive(replies)
	body := make([]byte, s.Size)
	f, err := s.calls(ctx, func(ctx context.Context) (int, error) {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		return 1, c.call(ctx, s.Queue, body)
	})
	return f, errors.Join(err, conn.Close())
}

func (c *rawCaller) receive(replies <-chan amqp.Delivery) {
	for d := range replies {
		c.mu.Lock()
		reply := c.pending[d.CorrelationId]
		delete(c.pending, d.CorrelationId)
		c.mu.Unlock()
		if reply != nil {
			reply <- d
		}
	}
}

func (c *rawCaller) call(ctx context.Context, queue string, body []byte) error {
	id, reply := uuid.NewString(), make(chan amqp.Delivery, 1)
	c.mu.Lock()
	c.pending[id] = reply
	err := c.ch.PublishWithContext(ctx, "", queue, false, false, amqp.Publishing{
		ContentType: "application/json", CorrelationId: id, ReplyTo: "amq.rabbitmq.reply-to", DeliveryMode: c.mode, Body: body})
	c.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case <-reply:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func callOurs(ctx context.Context, s spec) (figures, error) {
	conn, err := s.dialOurs(ctx)
	if err != nil {
		return figures{}, err
	}
	client, err := rpc.NewClient(conn, rpc.ClientConfig{})
	if err != nil {
		return figures{}, errors.Join(err, conn.Close(ctx))
	}
	body := make([]byte, s.Size)
	f, err := s.calls(ctx, func(ctx context.Context) (int, error) {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		_, err := client.Call(ctx, s.Queue, amqp.Publishing{ContentType: "application/json", Body: body})
		return 1, err
	})
	return f, errors.Join(err, conn.Close(context.Background()))
}

// serve answers both sides' calls until its standard input is closed.
func serve(_ context.Context, s spec) (figures, error) {
	conn, err := serveOn(s)
	if err != nil {
		return figures{}, err
	}
	_, _ = os.Stdin.Read(make([]byte, 1))
	return figures{}, conn.Close()
}

// serveOn is the least that a server can be, for as long as the connection lives.
func serveOn(s spec) (*amqp.Connection, error) {
	conn, err := s.dialRaw()
	if err != nil {
		return nil, err
	}
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Qos(window, 0, false)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	in, err := ch.Consume(s.Queue, "", false, false, false, false, nil)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	go func() {
		for d := range in {
			_ = ch.Publish("", d.ReplyTo, false, false, amqp.Publishing{CorrelationId: d.CorrelationId, Body: d.Body})
			_ = d.Ack(false)
		}
	}()
	return conn, nil
}
