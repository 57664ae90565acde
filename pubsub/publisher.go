package pubsub

import (
	"context"
	"errors"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/exchange"
	"github.com/warrenmq/warren/reconnect"
)

// Publisher announces events: every subscription gets a copy of each. It is safe for any number of goroutines, and has no
// Close: it ends with its Conn. Publishers of one Conn with equal settings share a confirm channel.
type Publisher struct {
	inner *exchange.Publisher
}

// NewPublisher returns a Publisher to e. It does no I/O: the first publish declares the exchange. It returns every fault
// of e and cfg at once, each naming its field. Whether a message without subscribers is a success is said by e.Mandatory;
// beside it cfg.AllowUnroutable is refused.
func NewPublisher(conn *reconnect.Conn, e Exchange, cfg reconnect.PublisherConfig) (*Publisher, error) {
	var faults error
	if conn != nil {
		faults = e.inner().Validate("Exchange.", conn.Config().Declare)
	}
	if e.Mandatory && cfg.AllowUnroutable {
		faults = errors.Join(faults, errors.New("AllowUnroutable: set beside Exchange.Mandatory"))
	}
	cfg.AllowUnroutable = !e.Mandatory
	inner, err := exchange.NewPublisher(conn, exchange.Outlet{Package: "pubsub", Exchange: e.Name, Topology: e.Topology()}, cfg, faults)
	if err != nil {
		return nil, err
	}
	return &Publisher{inner}, nil
}

// Publish sends msg to every subscription and returns nil when the broker has it safely in the queue of each. Messages are
// persistent unless they, or the settings, say otherwise, and get a MessageId and a Timestamp when they have none. It
// blocks until the confirmation, through reconnects, or until ctx ends (one without a deadline: after Timeout). The
// errors, and which of them mean that sending again may duplicate, are those of reconnect.Publisher.Publish; before them
// come a *reconnect.TopologyError when the exchange exists with another type or may not be declared.
// reconnect.ErrRefused says that at least one subscription's queue is full: the others have the message.
func (p *Publisher) Publish(ctx context.Context, msg amqp.Publishing) error {
	return p.inner.Publish(ctx, "", msg)
}

// PublishJSON is Publish of v as JSON, with content type application/json. A value that cannot be encoded is a permanent
// error, and nothing is sent.
func (p *Publisher) PublishJSON(ctx context.Context, v any) error {
	return p.inner.PublishJSON(ctx, "", v)
}

// PublishBatch sends msgs pipelined and in their order, and returns nil when all are confirmed. Otherwise its error wraps
// a reconnect.BatchError with an entry for each, see reconnect.Publisher.PublishBatch; when the exchange could not be
// declared it is that of Publish, and nothing was sent.
func (p *Publisher) PublishBatch(ctx context.Context, msgs []amqp.Publishing) error {
	batch := make([]reconnect.Message, len(msgs))
	for i, msg := range msgs {
		batch[i].Publishing = msg
	}
	return p.inner.PublishBatch(ctx, batch)
}
