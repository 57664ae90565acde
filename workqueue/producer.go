package workqueue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/codec"
	"github.com/warrenmq/warren/internal/once"
	"github.com/warrenmq/warren/internal/prefix"
	"github.com/warrenmq/warren/reconnect"
)

// Producer sends messages into one queue. It is safe for any number of goroutines, and has no Close: it ends with its
// Conn. Producers of one Conn with equal settings share a confirm channel.
type Producer struct {
	queue    string
	pub      *reconnect.Publisher
	declared *once.Declaration
}

// NewProducer returns a Producer for q. It does no I/O: the first publish declares the queue, with its dead-letter queue.
// It returns every fault of q and cfg at once, each naming its field.
func NewProducer(conn *reconnect.Conn, q Queue, cfg reconnect.PublisherConfig) (*Producer, error) {
	if conn == nil {
		return nil, errors.New("workqueue: producer: conn: nil")
	}
	cfg.Shared = true
	pub, err := conn.NewPublisher(cfg)
	if err := errors.Join(q.validate(), err); err != nil {
		return nil, fmt.Errorf("workqueue: producer of queue %q: %w", q.Name, err)
	}
	topology := q.Topology()
	declared := once.NewDeclaration(conn, cfg, func(ctx context.Context) error { return conn.Declare(ctx, topology) })
	return &Producer{queue: q.Name, pub: pub, declared: declared}, nil
}

// Publish sends msg to the queue and returns nil when the broker has it safely: on disk, on a majority of its replicas.
// Messages are persistent unless they, or the settings, say otherwise, and get a MessageId and a Timestamp when they have
// none. It blocks until the confirmation, through reconnects, or until ctx ends (one without a deadline: after Timeout).
// The errors, and which of them mean that sending again may duplicate, are those of reconnect.Publisher.Publish. The
// first publishes declare the queue and also return, with nothing sent, a *reconnect.TopologyError when it exists with
// other arguments or may not be declared, and the *amqp.Error with code 404 of a Passive queue that does not exist.
// The priority of a message above the queue's MaxPriority counts as that, and on a queue without priorities as none.
func (p *Producer) Publish(ctx context.Context, msg amqp.Publishing) error {
	if err := p.declare(ctx); err != nil {
		return err
	}
	return p.failed(p.pub.Publish(ctx, "", p.queue, msg))
}

// PublishJSON is Publish of v as JSON, with content type application/json. A value that cannot be encoded is a permanent
// error, and nothing is sent. Where a message needs an id of its own, to be sent again under the same one after
// ErrUnknown, or other properties, encode it and use Publish.
func (p *Producer) PublishJSON(ctx context.Context, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return p.failed(codec.Permanent(err))
	}
	return p.Publish(ctx, amqp.Publishing{ContentType: "application/json", Body: body})
}

// PublishBatch sends msgs pipelined and in their order, and returns nil when all are confirmed. Otherwise its error wraps
// a reconnect.BatchError with an entry for each, see reconnect.Publisher.PublishBatch; when the queue could not be
// declared it is that of Publish, and nothing was sent.
func (p *Producer) PublishBatch(ctx context.Context, msgs []amqp.Publishing) error {
	if len(msgs) == 0 {
		return nil
	}
	if err := p.declare(ctx); err != nil {
		return err
	}
	batch := make([]reconnect.Message, len(msgs))
	for i, msg := range msgs {
		batch[i] = reconnect.Message{Key: p.queue, Publishing: msg}
	}
	return p.failed(p.pub.PublishBatch(ctx, batch))
}

// declare puts the queue on the broker before the first message.
func (p *Producer) declare(ctx context.Context) error {
	return p.failed(p.declared.Do(ctx))
}

// failed says what was attempted, by the name of the queue alone: its exchange is the default one.
func (p *Producer) failed(err error) error {
	if err == nil {
		return nil // the hot path makes no text
	}
	return prefix.Wrap(fmt.Sprintf("workqueue: publish to queue %q", p.queue), err, fmt.Sprintf("publish to queue %q: ", p.queue))
}
