package exchange

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

// Outlet says where a Publisher sends.
type Outlet struct {
	Package  string             // which begins every error
	Exchange string             // which takes every message
	Topology reconnect.Topology // declared before the first message
}

// Publisher sends messages to one exchange. It is safe for any number of goroutines and ends with its Conn.
type Publisher struct {
	outlet   Outlet
	pub      *reconnect.Publisher
	declared *once.Declaration
}

// NewPublisher returns a Publisher, or what is wrong: with conn, with cfg, and the faults that the caller found. It does
// no I/O. Publishers of one Conn with equal settings share a confirm channel.
func NewPublisher(conn *reconnect.Conn, o Outlet, cfg reconnect.PublisherConfig, faults error) (*Publisher, error) {
	if conn == nil {
		return nil, fmt.Errorf("%s: publisher: conn: nil", o.Package)
	}
	cfg.Shared = true
	pub, err := conn.NewPublisher(cfg)
	if err := errors.Join(faults, err); err != nil {
		return nil, fmt.Errorf("%s: publisher of %s: %w", o.Package, named(o.Exchange), err)
	}
	declared := once.NewDeclaration(conn, cfg, func(ctx context.Context) error { return conn.Declare(ctx, o.Topology) })
	return &Publisher{outlet: o, pub: pub, declared: declared}, nil
}

// Publish sends msg with a routing key, see reconnect.Publisher.Publish. Before the first one the topology is declared.
func (p *Publisher) Publish(ctx context.Context, key string, msg amqp.Publishing) error {
	err := p.declare(ctx)
	if err == nil {
		err = p.pub.Publish(ctx, p.outlet.Exchange, key, msg)
	}
	return prefix.Wrap(p.outlet.Package, err)
}

// PublishJSON is Publish of v as JSON, with content type application/json. A value that cannot be encoded is a permanent
// error, and nothing is sent.
func (p *Publisher) PublishJSON(ctx context.Context, key string, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("%s: publish to %s: %w", p.outlet.Package, named(p.outlet.Exchange), codec.Permanent(err))
	}
	return p.Publish(ctx, key, amqp.Publishing{ContentType: "application/json", Body: body})
}

// PublishBatch sends msgs pipelined and in their order; see reconnect.Publisher.PublishBatch. An empty Exchange is filled
// in. A message for another exchange is not redirected in silence: it fails alone, permanently, and the others are sent.
func (p *Publisher) PublishBatch(ctx context.Context, msgs []reconnect.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	if err := p.declare(ctx); err != nil {
		return prefix.Wrap(p.outlet.Package, err)
	}
	ours := make([]reconnect.Message, 0, len(msgs))
	var foreign reconnect.BatchError
	for i, m := range msgs {
		if m.Exchange != "" && m.Exchange != p.outlet.Exchange {
			if foreign == nil {
				foreign = make(reconnect.BatchError, len(msgs))
			}
			foreign[i] = codec.Permanent(fmt.Errorf("Exchange: %q, this is a publisher of %q", m.Exchange, p.outlet.Exchange))
			continue
		}
		m.Exchange = p.outlet.Exchange
		ours = append(ours, m)
	}
	err := p.pub.PublishBatch(ctx, ours)
	if foreign != nil {
		err = merge(foreign, err)
	}
	return prefix.Wrap(p.outlet.Package, err)
}

// Closing returns a channel that is closed when Close of the Publisher's Conn begins, see reconnect.Publisher.Closing.
func (p *Publisher) Closing() <-chan struct{} { return p.pub.Closing() }

// merge fills the outcome of a batch of the remaining messages into all.
func merge(all reconnect.BatchError, rest error) error {
	var entries reconnect.BatchError
	speaksOfEach := errors.As(rest, &entries)
	next := 0
	for i := range all {
		if all[i] != nil {
			continue
		}
		all[i] = rest
		if speaksOfEach {
			all[i] = entries[next]
		}
		next++
	}
	return all
}

// declare puts the topology on the broker before the first message.
func (p *Publisher) declare(ctx context.Context) error {
	if err := p.declared.Do(ctx); err != nil {
		return prefix.Wrap("publish to "+named(p.outlet.Exchange), err)
	}
	return nil
}
