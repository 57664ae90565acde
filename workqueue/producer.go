package workqueue

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/codec"
	"github.com/warrenmq/warren/internal/once"
	"github.com/warrenmq/warren/reconnect"
)

// Producer sends messages into one queue. It is safe for any number of goroutines, and has no Close: it ends with its
// Conn. Producers of one Conn with equal settings share a confirm channel.
type Producer struct {
	conn     *reconnect.Conn
	queue    Queue
	topology reconnect.Topology
	pub      *reconnect.Publisher
	cfg      reconnect.PublisherConfig
	declared *once.Success
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
	return &Producer{conn: conn, queue: q, topology: q.Topology(), pub: pub, cfg: cfg,
		declared: once.New(cmp.Or(cfg.MaxWaiting, maxWaiting))}, nil
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
	if err := p.pub.Publish(ctx, "", p.queue.Name, msg); err != nil {
		return fmt.Errorf("workqueue: %w", err)
	}
	return nil
}

// PublishJSON is Publish of v as JSON, with content type application/json. A value that cannot be encoded is a permanent
// error, and nothing is sent. Where a message needs an id of its own, to be sent again under the same one after
// ErrUnknown, or other properties, encode it and use Publish.
func (p *Producer) PublishJSON(ctx context.Context, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("workqueue: publish to queue %q: %w", p.queue.Name, codec.Permanent(err))
	}
	return p.Publish(ctx, amqp.Publishing{ContentType: "application/json", Body: body})
}

// PublishBatch sends msgs pipelined and in their order, and returns nil when all are confirmed, otherwise a
// reconnect.BatchError with an entry for each. See reconnect.Publisher.PublishBatch.
func (p *Producer) PublishBatch(ctx context.Context, msgs []amqp.Publishing) error {
	if len(msgs) == 0 {
		return nil
	}
	if err := p.declare(ctx); err != nil {
		return err
	}
	batch := make([]reconnect.Message, len(msgs))
	for i, msg := range msgs {
		batch[i] = reconnect.Message{Key: p.queue.Name, Publishing: msg}
	}
	if err := p.pub.PublishBatch(ctx, batch); err != nil {
		return fmt.Errorf("workqueue: %w", err)
	}
	return nil
}

// declare puts the queue on the broker before the first message. It is part of the publish, so it ends when that has to:
// with FailFast it does not wait for a link either, and leaves it to the publish to say that there is none.
func (p *Producer) declare(ctx context.Context) error {
	if p.cfg.FailFast && !p.connected() {
		return nil
	}
	err := p.declared.Do(ctx, func(ctx context.Context) error {
		if _, bounded := ctx.Deadline(); !bounded && p.cfg.Timeout >= 0 {
			var cancel context.CancelFunc
			timeout := cmp.Or(p.cfg.Timeout, declareTimeout)
			ctx, cancel = context.WithTimeoutCause(ctx, timeout, fmt.Errorf("PublisherConfig.Timeout of %v has passed", timeout))
			defer cancel()
		}
		return p.conn.Declare(ctx, p.topology)
	})
	if errors.Is(err, once.ErrFull) {
		err = reconnect.ErrBusy
	}
	if err != nil {
		return fmt.Errorf("workqueue: publish to queue %q: %w", p.queue.Name, err)
	}
	return nil
}

// What a publish waits for before its queue is declared is bounded as it is afterwards, with the same defaults.
const (
	declareTimeout = 30 * time.Second
	maxWaiting     = 10_000
)

func (p *Producer) connected() bool {
	for _, s := range p.conn.State() {
		if s.Name == "publishing" && s.Phase == "connected" {
			return true
		}
	}
	return false
}
