package topic

import (
	"context"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/exchange"
	"github.com/warrenmq/warren/reconnect"
)

// Publisher sends messages by routing key to one exchange. It is safe for any number of goroutines, and has no Close: it
// ends with its Conn. Publishers of one Conn with equal settings share a confirm channel.
type Publisher struct {
	inner *exchange.Publisher
}

// NewPublisher returns a Publisher to e. It does no I/O: the first publish declares the exchange. It returns every fault
// of e and cfg at once, each naming its field.
func NewPublisher(conn *reconnect.Conn, e Exchange, cfg reconnect.PublisherConfig) (*Publisher, error) {
	var faults error
	if conn != nil {
		faults = e.inner().Validate("Exchange.", conn.Config().Declare)
	}
	inner, err := exchange.NewPublisher(conn, exchange.Outlet{Package: "topic", Exchange: e.Name, Topology: e.Topology()}, cfg, faults)
	if err != nil {
		return nil, err
	}
	return &Publisher{inner}, nil
}

// Publish sends msg with a routing key, up to 255 bytes, words with dots between, and returns nil when the broker has it
// safely in every queue whose pattern matches. Messages are persistent unless they, or the settings, say otherwise, and get
// a MessageId and a Timestamp when they have none. It blocks until the confirmation, through reconnects, or until ctx
// ends (one without a deadline: after Timeout).
//
// The errors, and which of them mean that sending again may duplicate, are those of reconnect.Publisher.Publish: a
// *reconnect.ReturnedError when no pattern matches and no alternate exchange takes it, reconnect.ErrRefused when at least one
// of the queues is full (the others have it). Before them come a *reconnect.TopologyError when the exchange exists with
// other properties or may not be declared.
func (p *Publisher) Publish(ctx context.Context, key string, msg amqp.Publishing) error {
	return p.inner.Publish(ctx, key, msg)
}

// PublishJSON is Publish of v as JSON, with content type application/json. A value that cannot be encoded is a permanent
// error, and nothing is sent.
func (p *Publisher) PublishJSON(ctx context.Context, key string, v any) error {
	return p.inner.PublishJSON(ctx, key, v)
}

// PublishBatch sends msgs, each by its Key, pipelined and in their order, and returns nil when all are confirmed.
// Otherwise its error wraps a reconnect.BatchError with an entry for each, see reconnect.Publisher.PublishBatch; when the
// exchange could not be declared it is that of Publish, and nothing was sent. Their Exchange is filled in; a message that
// names another one fails alone.
func (p *Publisher) PublishBatch(ctx context.Context, msgs []reconnect.Message) error {
	return p.inner.PublishBatch(ctx, msgs)
}

// Closing returns a channel that is closed when Close of the Publisher's Conn begins, see reconnect.Publisher.Closing.
func (p *Publisher) Closing() <-chan struct{} { return p.inner.Closing() }
