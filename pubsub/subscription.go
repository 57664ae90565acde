package pubsub

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/exchange"
	"github.com/warrenmq/warren/reconnect"
)

// Subscription describes who gets a copy of every message of an exchange.
//
// With a Queue it is durable: the queue stands for a group, usually a service, whose instances share its messages, and
// keeps them while no instance runs. Without one it is live: each instance has a queue of its own, for as long as it is
// connected.
type Subscription struct {
	// Exchange is what is subscribed to. Required.
	Exchange Exchange

	// Queue is the group, 1 to 200 bytes: subscribers with the same queue share the messages, those with another one get
	// their own copies. Name it after who listens and to what, "billing.orders". What fails ends in "<Queue>.dlq", declared
	// with it. Required by NewSubscriber, refused by NewLiveSubscriber.
	Queue string

	// DeliveryLimit is how often a message may come back unsettled (its subscriber died, its channel was lost) before it
	// is dead-lettered; up to RabbitMQ 4.2 hand-backs at a graceful stop count too. Default 20. Not for a live one.
	DeliveryLimit int

	// DeadLetterExchange names a durable direct exchange, declared with the queue, through which failures reach the
	// dead-letter queue. Default: the broker's default exchange, for which a user needs the right to write to
	// amq.default, and so to every queue. Not for a live one.
	DeadLetterExchange string

	// TTL is how long a message may wait before it is dead-lettered, or dropped from a live queue; whole milliseconds, up
	// to 49 days. Default: no limit.
	TTL time.Duration

	// Arguments are added to the queue's; those that the other fields set are refused.
	Arguments amqp.Table

	// MaxLength is the number of ready messages above which a durable subscription refuses, so that the publish returns
	// reconnect.ErrRefused although other subscriptions took it (default: none), and above which a live one drops the
	// oldest (default 10,000).
	MaxLength int64

	// Declare is the mode for the queue, its dead-letter queue and exchange, and the binding: a queue that is not ours to
	// declare is not bound, either. Not for a live one.
	Declare reconnect.Declare
}

// DeadLetterQueue is the name of the queue in which a durable subscription's failures end.
func (s Subscription) DeadLetterQueue() string { return s.inner().DeadLetterQueue() }

// Topology is what the subscription needs on the broker: the exchange, the dead-letter queue, the queue and its binding.
// Declared before the first publish, it keeps what is published before the first subscriber runs. Of a live subscription
// it is only the exchange: the queue comes and goes with each connection.
func (s Subscription) Topology() reconnect.Topology { return s.inner().Topology() }

func (s Subscription) inner() exchange.Subscription {
	return exchange.Subscription{Exchange: s.Exchange.inner(), Queue: s.Queue, DeliveryLimit: s.DeliveryLimit,
		DeadLetterExchange: s.DeadLetterExchange, TTL: s.TTL, Arguments: s.Arguments, MaxLength: s.MaxLength, Declare: s.Declare}
}
