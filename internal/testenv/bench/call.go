package main

import (
	"context"
	"os"
	"sync"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
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

func callPersistent(ctx context.Context, s spec, conn *amqp.Connection) (figures, error) {
	return callRaw(ctx, s, conn, amqp.Persistent)
}

func callTransient(ctx context.Context, s spec, conn *amqp.Connection) (figures, error) {
	return callRaw(ctx, s, conn, amqp.Transient)
}

func callRaw(ctx context.Context, s spec, conn *amqp.Connection, mode uint8) (figures, error) {
	ch, err := conn.Channel()
	if err != nil {
		return figures{}, err
	}
	replies, err := ch.Consume("amq.rabbitmq.reply-to", "", true, false, false, false, nil)
	if err != nil {
		return figures{}, err
	}
	c := &rawCaller{ch: ch, mode: mode, pending: map[string]chan amqp.Delivery{}}
	go c.receive(replies)
	body := make([]byte, s.Size)
	return s.calls(ctx, func(ctx context.Context) (int, error) {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		return 1, c.call(ctx, s.Queue, body)
	})
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

func callOurs(ctx context.Context, s spec, conn *reconnect.Conn) (figures, error) {
	client, err := rpc.NewClient(conn, rpc.ClientConfig{})
	if err != nil {
		return figures{}, err
	}
	body := make([]byte, s.Size)
	return s.calls(ctx, func(ctx context.Context) (int, error) {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		_, err := client.Call(ctx, s.Queue, amqp.Publishing{ContentType: "application/json", Body: body})
		return 1, err
	})
}

// isCall reports whether a server must be there for the run.
func (s spec) isCall() bool { return s.Path == "call" || s.Path == "call-fast" }

// serve answers both sides' calls until its standard input is closed.
func serve(_ context.Context, s spec, conn *amqp.Connection) (figures, error) {
	if err := s.serveOn(conn); err != nil {
		return figures{}, err
	}
	_, _ = os.Stdin.Read(make([]byte, 1))
	return figures{}, nil
}

// serveOn is the least that a server can be, for as long as the connection lives.
func (s spec) serveOn(conn *amqp.Connection) error {
	ch, in, err := s.deliveries(conn, window)
	if err != nil {
		return err
	}
	go func() {
		for d := range in {
			_ = ch.Publish("", d.ReplyTo, false, false, amqp.Publishing{CorrelationId: d.CorrelationId, Body: d.Body})
			_ = d.Ack(false)
		}
	}()
	return nil
}
