package retry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/prefix"
	"github.com/warrenmq/warren/reconnect"
)

// Handler handles one message, like the Handler of every package.
type Handler = func(ctx context.Context, d amqp.Delivery) error

// Retrier tries the failed messages of one queue again, later, and moves to the dead-letter queue what does not succeed. It
// is safe for concurrent use, may wrap any number of handlers of its queue, needs no closing and ends with its Conn.
type Retrier struct {
	conn     *reconnect.Conn
	queue    string
	policy   Policy // with its defaults
	topology reconnect.Topology
	pub      *reconnect.Publisher
	blind    *reconnect.Publisher // of the plugin's exchange, which says of every delayed message that it went nowhere
	log      *slog.Logger
	consumer string
	doubts   doubts

	declaring chan struct{} // the turn to declare again
	declared  atomic.Uint64 // how often that was done
}

// New returns a Retrier for the messages of queue, and declares what it needs there (Policy.Topology), so that it is there
// before the first failure, and again after each reconnect. It blocks until the broker has answered or ctx ends. It returns
// every fault of queue and p at once, each naming its field; *reconnect.TopologyError when a delay queue exists with other
// arguments or may not be declared, or the plugin is missing; and the *amqp.Error with code 404 of a Passive delay queue
// that does not exist, or of queue itself where that has to be bound (DeadLetterExchange, DelayedPlugin).
func New(ctx context.Context, conn *reconnect.Conn, queue string, p Policy) (*Retrier, error) {
	if conn == nil {
		return nil, errors.New("retry: conn: nil")
	}
	cfg := conn.Config()
	if err := errors.Join(p.validateQueue(queue, cfg.Declare), p.validate()); err != nil {
		return nil, fmt.Errorf("retry: queue %q: %w", queue, err)
	}
	pub, err := conn.NewPublisher(reconnect.PublisherConfig{Shared: true})
	blind, err2 := conn.NewPublisher(reconnect.PublisherConfig{Shared: true, AllowUnroutable: true})
	if err := errors.Join(err, err2); err != nil {
		return nil, fmt.Errorf("retry: queue %q: %w", queue, err)
	}
	r := &Retrier{conn: conn, queue: queue, policy: p.withDefaults(), topology: p.Topology(queue), pub: pub, blind: blind,
		log: cfg.Logger.With("queue", queue), consumer: cfg.Name, declaring: make(chan struct{}, 1)}
	if err := conn.Declare(ctx, r.topology); err != nil {
		return nil, prefix.Wrap(fmt.Sprintf("retry: queue %q", queue), p.explain(queue, err))
	}
	return r, nil
}

// explain says what a person can do where the broker only says that it does not know the exchange's type.
func (p Policy) explain(queue string, err error) error {
	var t *reconnect.TopologyError
	if p.DelayedPlugin && errors.As(err, &t) && t.Entity == fmt.Sprintf("exchange %q", delayedExchange(queue)) &&
		t.Err != nil && strings.Contains(t.Err.Error(), "exchange type") {
		return fmt.Errorf("DelayedPlugin: the broker has no exchange type %s: install the plugin and run `rabbitmq-plugins enable %s` "+
			"on every node, or leave DelayedPlugin off: %w", delayedKind, delayedPlugin, err)
	}
	return err
}

// trusts tells whether our headers of d may be ours.
func (r *Retrier) trusts(d *amqp.Delivery) bool {
	delayed := ""
	if r.policy.DelayedPlugin {
		delayed = delayedExchange(r.queue)
	}
	return trusted(d.Exchange, d.RoutingKey, r.queue, r.policy.DeadLetterExchange, delayed)
}

// read returns d as it was first delivered, and which attempt this is.
func (r *Retrier) read(d amqp.Delivery) (amqp.Delivery, record) {
	first, rec := restore(d, r.trusts(&d))
	if rec.reason != "" { // taken out of a dead-letter queue, by other means than ours: it begins anew
		rec = record{attempt: 1}
	}
	if r.policy.MaxAttempts > 0 {
		rec.attempt = min(rec.attempt, r.policy.MaxAttempts)
	}
	return first, rec
}
