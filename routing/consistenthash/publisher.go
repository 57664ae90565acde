package consistenthash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/codec"
	"github.com/warrenmq/warren/internal/once"
	"github.com/warrenmq/warren/internal/prefix"
	"github.com/warrenmq/warren/internal/wire"
	"github.com/warrenmq/warren/reconnect"
)

// keyHeader carries the key. Behind a direct exchange the routing key is that of the partition, and after a dead letter was sent
// back it is the queue's name: a handler, and Resize, need the key all the same.
const keyHeader = "warren-key"

// Publisher sends messages to the partition of their key. It is safe for any number of goroutines, and has no Close: it ends with
// its Conn. Publishers of one Conn with equal settings share a confirm channel.
type Publisher struct {
	partitions Partitions
	pub        *reconnect.Publisher
	declared   *once.Declaration
}

// NewPublisher returns a Publisher for p. It does no I/O: the first publish declares the partitions. It returns every fault of p
// and cfg at once, each naming its field.
func NewPublisher(conn *reconnect.Conn, p Partitions, cfg reconnect.PublisherConfig) (*Publisher, error) {
	if conn == nil {
		return nil, errors.New("consistenthash: publisher: conn: nil")
	}
	cfg.Shared = true
	pub, err := conn.NewPublisher(cfg)
	if err := errors.Join(p.validate(), err); err != nil {
		return nil, fmt.Errorf("consistenthash: publisher of partitions %q: %w", p.Name, err)
	}
	declared := once.NewDeclaration(conn, cfg, func(ctx context.Context) error { return p.declareNow(ctx, conn) })
	return &Publisher{partitions: p, pub: pub, declared: declared}, nil
}

// Publish sends msg to the partition of key, 1 to 255 bytes, and returns nil when the broker has it safely. Messages of one key are
// handled in the order in which they were confirmed; so a caller who minds it waits for each Publish, or uses PublishBatch. key
// travels in a header of its own, "warren-key".
//
// It blocks until the confirmation, through reconnects, or until ctx ends (one without a deadline: after Timeout). The errors, and
// which of them mean that sending again may duplicate, are those of reconnect.Publisher.Publish; before them come ErrCountChanged and a
// *reconnect.TopologyError when the partitions exist otherwise or may not be declared.
func (p *Publisher) Publish(ctx context.Context, key string, msg amqp.Publishing) error {
	m, err := p.partitions.address(key, msg)
	if err == nil {
		err = p.declared.Do(ctx)
	}
	if err == nil {
		err = p.pub.Publish(ctx, m.Exchange, m.Key, m.Publishing)
	}
	if err != nil {
		return prefix.Wrap(fmt.Sprintf("consistenthash: publish with key %q", key), err)
	}
	return nil
}

// PublishJSON is Publish of v as JSON, with content type application/json. A value that cannot be encoded is a permanent
// error, and nothing is sent.
func (p *Publisher) PublishJSON(ctx context.Context, key string, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("consistenthash: publish with key %q: %w", key, codec.Permanent(err))
	}
	return p.Publish(ctx, key, amqp.Publishing{ContentType: "application/json", Body: body})
}

// PublishBatch sends msgs pipelined and in their order, each to the partition of its Key; an empty Exchange is filled in, and a
// message for another one fails alone. It returns nil when all are confirmed. Otherwise its error wraps a reconnect.BatchError with
// an entry for each, see reconnect.Publisher.PublishBatch; when the partitions could not be declared, or have another Count, it is that
// of Publish, and nothing was sent.
func (p *Publisher) PublishBatch(ctx context.Context, msgs []reconnect.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	if err := p.declared.Do(ctx); err != nil {
		return prefix.Wrap("consistenthash: publish a batch", err)
	}
	faults := make(reconnect.BatchError, len(msgs))
	batch, places := make([]reconnect.Message, 0, len(msgs)), make([]int, 0, len(msgs))
	for i, msg := range msgs {
		m, err := p.partitions.address(msg.Key, msg.Publishing)
		if msg.Exchange != "" && msg.Exchange != m.Exchange {
			err = codec.Permanent(fmt.Errorf("Exchange: %q, this is a publisher of %q", msg.Exchange, p.partitions.Name))
		}
		if err != nil {
			faults[i] = err
			continue
		}
		batch, places = append(batch, m), append(places, i)
	}
	err := p.send(ctx, batch)
	var each reconnect.BatchError
	switch {
	case err == nil && len(batch) == len(msgs):
		return nil
	case errors.As(err, &each):
		for i, err := range each {
			faults[places[i]] = err
		}
	case err != nil:
		return prefix.Wrap("consistenthash: publish a batch", err)
	}
	return prefix.Wrap("consistenthash: publish a batch", faults)
}

// Closing returns a channel that is closed when Close of the Publisher's Conn begins, see reconnect.Publisher.Closing.
func (p *Publisher) Closing() <-chan struct{} { return p.pub.Closing() }

func (p *Publisher) send(ctx context.Context, batch []reconnect.Message) error {
	if len(batch) == 0 {
		return nil
	}
	return p.pub.PublishBatch(ctx, batch)
}

// address turns a message with a key into one that the exchange routes, or says why that key, or what the broker hashes instead, is
// bad input.
func (p Partitions) address(key string, msg amqp.Publishing) (reconnect.Message, error) {
	if err := p.hashable(key, &msg); err != nil {
		return reconnect.Message{}, codec.Permanent(err)
	}
	headers := make(amqp.Table, len(msg.Headers)+1) // the caller's stays as it is
	maps.Copy(headers, msg.Headers)
	headers[keyHeader] = key
	msg.Headers = headers
	m := reconnect.Message{Exchange: p.Name, Key: key, Publishing: msg}
	if !p.Plugin {
		m.Key = p.Queue(hash(key, p.Count))
	}
	return m, nil
}

// hashable refuses what would lead all such messages to one partition, or equal ones to different ones: a header of another type
// hashes differently, and not on every broker in the same way.
func (p Partitions) hashable(key string, msg *amqp.Publishing) error {
	if err := wire.ShortString("key", key); err != nil {
		return err
	}
	switch {
	case p.HashHeader != "":
		if s, ok := msg.Headers[p.HashHeader].(string); !ok || s == "" {
			return fmt.Errorf("Headers: %q, which is hashed, must be a string that is not empty", p.HashHeader)
		}
	case p.HashProperty == "correlation_id" && msg.CorrelationId == "":
		return errors.New("CorrelationId: empty, and it is hashed")
	case p.HashProperty == "" && key == "":
		return errors.New("key: empty")
	}
	return nil
}
