package acceptance

import (
	"context"
	"fmt"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/pubsub"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/routing/consistenthash"
	"github.com/warrenmq/warren/routing/direct"
	"github.com/warrenmq/warren/routing/topic"
	"github.com/warrenmq/warren/workqueue"
)

// defaultExchange is the name under which the broker gives rights to the default exchange.
const defaultExchange = "amq.default"

// roles are all there are. A new pattern adds its own here.
func roles() []role {
	return slices.Concat(workqueueRoles(), exchangeRoles("pubsub", pubsubPattern{}), exchangeRoles("direct", directPattern{}),
		exchangeRoles("topic", topicPattern{}), partitionRoles(), rpcRoles(), retryRoles(), relayRoles())
}

// relayRoles are the outbox's: all that its relay does with the broker is PublishBatch.
func relayRoles() []role {
	return []role{{"outbox/relay", func(n string) []right { return write(n) }, func(c *cast, n string) error {
		err := c.operate(reconnect.Passive, reconnect.Topology{Exchanges: []reconnect.Exchange{{Name: n, Kind: amqp.ExchangeTopic}}})
		if err != nil {
			return err
		}
		p, err := c.user.NewPublisher(reconnect.PublisherConfig{AllowUnroutable: true})
		if err != nil {
			return err
		}
		return p.PublishBatch(c.ctx, []reconnect.Message{{Exchange: n, Key: "a", Publishing: message}, {Exchange: n, Key: "b", Publishing: message}})
	}}}
}

var message = amqp.Publishing{Body: []byte("m")}

func workqueueRoles() []role {
	plain := func(n string) workqueue.Queue { return workqueue.Queue{Name: n} }
	own := func(n string) workqueue.Queue { return workqueue.Queue{Name: n, DeadLetterExchange: n + ".dlx"} }
	classic := func(n string) workqueue.Queue {
		return workqueue.Queue{Name: n, DeadLetterExchange: n + ".dlx", Classic: true}
	}
	none := func(n string) workqueue.Queue { return workqueue.Queue{Name: n, NoDeadLetter: true} }
	passive := func(n string) workqueue.Queue { return workqueue.Queue{Name: n, Declare: reconnect.Passive} }
	produce := func(queue func(string) workqueue.Queue) func(*cast, string) error {
		return func(c *cast, n string) error {
			if err := c.operate(queue(n).Declare, workqueue.Queue{Name: n}.Topology()); err != nil {
				return err
			}
			p, err := workqueue.NewProducer(c.user, queue(n), reconnect.PublisherConfig{})
			if err != nil {
				return err
			}
			return p.Publish(c.ctx, message)
		}
	}
	work := func(queue func(string) workqueue.Queue, fail bool) func(*cast, string) error {
		return func(c *cast, n string) error {
			if err := c.operate(queue(n).Declare, workqueue.Queue{Name: n}.Topology()); err != nil {
				return err
			}
			h, handled := handler()
			if fail {
				h = failing(h)
			}
			w, err := workqueue.NewWorker(c.user, queue(n), h, workqueue.WorkerConfig{})
			return c.consume(w, err, handled, func() error {
				p, err := workqueue.NewProducer(c.operator, queue(n), reconnect.PublisherConfig{})
				if err != nil {
					return err
				}
				return p.Publish(c.ctx, message)
			})
		}
	}
	move := func(c *cast, n string) error {
		from := workqueue.Queue{Name: n, Classic: true}
		if err := c.operate(reconnect.Passive, from.Topology()); err != nil {
			return err
		}
		p, err := workqueue.NewProducer(c.operator, workqueue.Queue{Name: n, Declare: reconnect.Skip}, reconnect.PublisherConfig{})
		if err == nil {
			err = p.Publish(c.ctx, message)
		}
		if err != nil {
			return fmt.Errorf("the operator: %w", err)
		}
		_, err = workqueue.Move(c.ctx, c.user, from, plain(n))
		return err
	}
	verify := func(c *cast, n string) error {
		if err := c.operate(reconnect.Passive, plain(n).Topology()); err != nil {
			return err
		}
		return c.user.Verify(c.ctx, plain(n).Topology())
	}
	declare := func(n string) []right {
		return slices.Concat(configure(n, n+".dlq"), write(defaultExchange), read(n))
	}
	declareOwn := func(n string) []right {
		return slices.Concat(configure(n, n+".dlq", n+".dlx"), write(n+".dlq", n+".dlx"), read(n, n+".dlx"))
	}
	return []role{
		{"workqueue/producer", declare, produce(plain)},
		{"workqueue/producer of a passive queue", func(string) []right { return write(defaultExchange) }, produce(passive)},
		{"workqueue/producer with an own dead-letter exchange", func(n string) []right { return append(declareOwn(n), write(defaultExchange)...) }, produce(own)},
		{"workqueue/worker", declare, work(plain, true)},
		{"workqueue/worker of a passive queue", func(n string) []right { return read(n) }, work(passive, true)},
		{"workqueue/worker without dead letters", func(n string) []right { return append(configure(n), read(n)...) }, work(none, true)},
		{"workqueue/worker with an own dead-letter exchange", declareOwn, work(own, true)},
		{"workqueue/move", func(n string) []right {
			return slices.Concat(configure(n, n+".dlq", n+".moving"), write(defaultExchange), read(n, n+".moving"))
		}, move},
		{"workqueue/verify", func(n string) []right { return configure(n, n+".dlq") }, verify},
		{"workqueue/classic with an own dead-letter exchange", declareOwn, work(classic, true)},
	}
}

func failing(h workqueue.Handler) workqueue.Handler {
	return func(ctx context.Context, d amqp.Delivery) error {
		_ = h(ctx, d)
		return errFailed
	}
}

// operate declares t as the operator, for a user who does not.
func (c *cast) operate(mode reconnect.Declare, t reconnect.Topology) error {
	if mode == reconnect.Active {
		return nil
	}
	defer c.operator.Forget(t)
	return c.operator.Declare(c.ctx, t)
}

// exchangePattern is what pubsub, direct and topic have in common.
type exchangePattern interface {
	topology(exchange, queue string) reconnect.Topology
	publish(c *cast, conn *reconnect.Conn, exchange, alternate string, mode reconnect.Declare) error
	subscriber(conn *reconnect.Conn, exchange, queue, dlx string, mode reconnect.Declare, h workqueue.Handler) (runner, error)
	live(conn *reconnect.Conn, exchange string, h workqueue.Handler) (runner, error)
}

func exchangeRoles(name string, p exchangePattern) []role {
	publish := func(mode reconnect.Declare, alternate string) func(*cast, string) error {
		return func(c *cast, n string) error {
			// Somebody listens, so that nothing is returned.
			group := p.topology(n, n+".q")
			if mode == reconnect.Active {
				group = reconnect.Topology{}
			}
			defer c.operator.Forget(group)
			if err := c.operator.Declare(c.ctx, group); err != nil {
				return err
			}
			a := alternate
			if a != "" {
				a = n + a
			}
			return unlessReturned(p.publish(c, c.user, n, a, mode))
		}
	}
	subscribe := func(mode reconnect.Declare, dlx string) func(*cast, string) error {
		return func(c *cast, n string) error {
			if err := c.operate(mode, p.topology(n, n+".q")); err != nil {
				return err
			}
			own := dlx
			if own != "" {
				own = n + dlx
			}
			h, handled := handler()
			s, err := p.subscriber(c.user, n, n+".q", own, mode, h)
			return c.consume(s, err, handled, func() error { return p.publish(c, c.operator, n, "", reconnect.Skip) })
		}
	}
	live := func(c *cast, n string) error {
		h, handled := handler()
		s, err := p.live(c.user, n, h)
		return c.consume(s, err, handled, func() error { return p.publish(c, c.operator, n, "", reconnect.Skip) })
	}
	out := []role{
		{name + "/publisher", func(n string) []right { return append(configure(n), write(n)...) }, publish(reconnect.Active, "")},
		{name + "/publisher, passive", func(n string) []right { return write(n) }, publish(reconnect.Passive, "")},
		{name + "/durable", func(n string) []right {
			return slices.Concat(configure(n, n+".q", n+".q.dlq"), write(n+".q", defaultExchange), read(n, n+".q"))
		}, subscribe(reconnect.Active, "")},
		{name + "/durable, passive", func(n string) []right { return read(n + ".q") }, subscribe(reconnect.Passive, "")},
		{name + "/durable with an own dead-letter exchange", func(n string) []right {
			return slices.Concat(configure(n, n+".q", n+".q.dlq", n+".dlx"), write(n+".q", n+".q.dlq", n+".dlx"), read(n, n+".q", n+".dlx"))
		}, subscribe(reconnect.Active, ".dlx")},
		{name + "/live", func(n string) []right {
			return slices.Concat(configure(n, n+".live.*"), write(n+".live.*"), read(n, n+".live.*"))
		}, live},
	}
	if name != "pubsub" {
		out = append(out, role{name + "/publisher with an alternate exchange", func(n string) []right {
			return slices.Concat(configure(n), write(n, n+".alt"), read(n))
		}, publish(reconnect.Active, ".alt")})
	}
	return out
}

type pubsubPattern struct{}

func (pubsubPattern) exchange(name string, mode reconnect.Declare) pubsub.Exchange {
	return pubsub.Exchange{Name: name, Declare: mode}
}

func (p pubsubPattern) topology(exchange, queue string) reconnect.Topology {
	return pubsub.Subscription{Exchange: p.exchange(exchange, 0), Queue: queue}.Topology()
}

func (p pubsubPattern) publish(c *cast, conn *reconnect.Conn, exchange, _ string, mode reconnect.Declare) error {
	pub, err := pubsub.NewPublisher(conn, p.exchange(exchange, mode), reconnect.PublisherConfig{})
	if err != nil {
		return err
	}
	return pub.Publish(c.ctx, message)
}

func (p pubsubPattern) subscriber(conn *reconnect.Conn, exchange, queue, dlx string, mode reconnect.Declare, h workqueue.Handler) (runner, error) {
	return pubsub.NewSubscriber(conn, pubsub.Subscription{Exchange: p.exchange(exchange, mode), Queue: queue, DeadLetterExchange: dlx, Declare: mode}, h, pubsub.SubscriberConfig{})
}

func (p pubsubPattern) live(conn *reconnect.Conn, exchange string, h workqueue.Handler) (runner, error) {
	return pubsub.NewLiveSubscriber(conn, pubsub.Subscription{Exchange: p.exchange(exchange, 0)}, h, pubsub.SubscriberConfig{})
}

// key is what direct and topic publish with and listen to.
const key = "key"

type directPattern struct{}

func (directPattern) topology(exchange, queue string) reconnect.Topology {
	return direct.Subscription{Exchange: direct.Exchange{Name: exchange}, Queue: queue, Keys: []string{key}}.Topology()
}

func (directPattern) publish(c *cast, conn *reconnect.Conn, exchange, alternate string, mode reconnect.Declare) error {
	pub, err := direct.NewPublisher(conn, direct.Exchange{Name: exchange, Alternate: alternate, Declare: mode}, reconnect.PublisherConfig{})
	if err != nil {
		return err
	}
	return pub.Publish(c.ctx, key, message)
}

func (directPattern) subscriber(conn *reconnect.Conn, exchange, queue, dlx string, mode reconnect.Declare, h workqueue.Handler) (runner, error) {
	return direct.NewSubscriber(conn, direct.Subscription{Exchange: direct.Exchange{Name: exchange, Declare: mode}, Queue: queue,
		Keys: []string{key}, DeadLetterExchange: dlx, Declare: mode}, h, direct.SubscriberConfig{})
}

func (directPattern) live(conn *reconnect.Conn, exchange string, h workqueue.Handler) (runner, error) {
	return direct.NewLiveSubscriber(conn, direct.Subscription{Exchange: direct.Exchange{Name: exchange}, Keys: []string{key}}, h, direct.SubscriberConfig{})
}

type topicPattern struct{}

func (topicPattern) topology(exchange, queue string) reconnect.Topology {
	return topic.Subscription{Exchange: topic.Exchange{Name: exchange}, Queue: queue, Patterns: []string{key}}.Topology()
}

func (topicPattern) publish(c *cast, conn *reconnect.Conn, exchange, alternate string, mode reconnect.Declare) error {
	pub, err := topic.NewPublisher(conn, topic.Exchange{Name: exchange, Alternate: alternate, Declare: mode}, reconnect.PublisherConfig{})
	if err != nil {
		return err
	}
	return pub.Publish(c.ctx, key, message)
}

func (topicPattern) subscriber(conn *reconnect.Conn, exchange, queue, dlx string, mode reconnect.Declare, h workqueue.Handler) (runner, error) {
	return topic.NewSubscriber(conn, topic.Subscription{Exchange: topic.Exchange{Name: exchange, Declare: mode}, Queue: queue,
		Patterns: []string{key}, DeadLetterExchange: dlx, Declare: mode}, h, topic.SubscriberConfig{})
}

func (topicPattern) live(conn *reconnect.Conn, exchange string, h workqueue.Handler) (runner, error) {
	return topic.NewLiveSubscriber(conn, topic.Subscription{Exchange: topic.Exchange{Name: exchange}, Patterns: []string{key}}, h, topic.SubscriberConfig{})
}

func partitionRoles() []role {
	partitions := func(n, dlx string, mode reconnect.Declare) consistenthash.Partitions {
		return consistenthash.Partitions{Name: n, Count: 1, DeadLetterExchange: dlx, Declare: mode}
	}
	publish := func(c *cast, conn *reconnect.Conn, p consistenthash.Partitions) error {
		pub, err := consistenthash.NewPublisher(conn, p, reconnect.PublisherConfig{})
		if err != nil {
			return err
		}
		return pub.Publish(c.ctx, key, message)
	}
	publisher := func(mode reconnect.Declare) func(*cast, string) error {
		return func(c *cast, n string) error {
			if err := c.operate(mode, partitions(n, "", 0).Topology()); err != nil {
				return err
			}
			return publish(c, c.user, partitions(n, "", mode))
		}
	}
	consumer := func(mode reconnect.Declare, dlx string) func(*cast, string) error {
		return func(c *cast, n string) error {
			if err := c.operate(mode, partitions(n, "", 0).Topology()); err != nil {
				return err
			}
			own := dlx
			if own != "" {
				own = n + dlx
			}
			h, handled := handler()
			s, err := consistenthash.NewConsumer(c.user, partitions(n, own, mode), h, consistenthash.ConsumerConfig{})
			return c.consume(s, err, handled, func() error { return publish(c, c.operator, partitions(n, own, reconnect.Skip)) })
		}
	}
	declare := func(n string) []right {
		return slices.Concat(configure(n, n+".000", n+".dlq", n+".partitions"), write(n+".000", defaultExchange), read(n, n+".000"))
	}
	declareOwn := func(n string) []right {
		return slices.Concat(configure(n, n+".000", n+".dlq", n+".partitions", n+".dlx"), write(n+".000", n+".dlq", n+".dlx"), read(n, n+".000", n+".dlx"))
	}
	return []role{
		{"consistenthash/publisher", func(n string) []right { return append(declare(n), write(n)...) }, publisher(reconnect.Active)},
		{"consistenthash/publisher, passive", func(n string) []right { return write(n) }, publisher(reconnect.Passive)},
		{"consistenthash/consumer", func(n string) []right { return append(declare(n), read(n+".partitions")...) }, consumer(reconnect.Active, "")},
		{"consistenthash/consumer, passive", func(n string) []right { return read(n+".000", n+".partitions") }, consumer(reconnect.Passive, "")},
		{"consistenthash/consumer with an own dead-letter exchange", func(n string) []right { return append(declareOwn(n), read(n+".partitions")...) }, consumer(reconnect.Active, ".dlx")},
	}
}
