package rpc

import (
	"errors"
	"fmt"
	"math"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/wire"
	"github.com/warrenmq/warren/reconnect"
)

// ServerConfig says how a Server serves, and what the queue of its requests is. The zero value serves one request at a
// time. Servers that share a queue have the same Exchange, Keys, MaxLength and MaxDeadline.
type ServerConfig struct {
	// Exchange, when set, is a direct exchange to which the queue is bound with each of Keys: a client with the same Exchange
	// calls by key. Default: none, clients call the queue.
	Exchange string
	Keys     []string

	// Concurrency is the number of handlers that run at once, each with a channel of its own. Default 1.
	Concurrency int

	// Prefetch is how many requests each of them holds at most, 1 to 65535. Above 1 a request may wait behind a slow one
	// while another server is idle, and when the server's link is lost, callers whose requests only waited are told
	// reconnect.ErrUnknown, too. Default 1.
	Prefetch int

	// MaxLength is how many requests may wait in the queue; a call beyond that is reconnect.ErrRefused at once. Default: no
	// limit but that of their deadlines.
	MaxLength int64

	// ErrorCode names an error of the handler for the caller: RemoteError.Code. "" is taken for "error". It is not asked
	// about a *RemoteError, which goes to the caller as it is. Default: always "error".
	ErrorCode func(error) string

	// ReplyTo are prefixes of the queues that may be answered to, beside direct reply-to. Whoever may send a request chooses
	// its ReplyTo, so without a limit the server could be made to write to any queue. Its own is never answered to.
	ReplyTo []string

	// Idempotent says that the handler takes effect once however often a request comes, as with an inbox that stores its
	// replies: a request that another server had before it died is handled, whatever the caller says. Default: only
	// those of an Idempotent client are, and others are answered with reconnect.ErrUnknown.
	Idempotent bool

	// MaxDeadline is the longest a request may wait and be handled, whatever its caller says, and so the TTL of the queue:
	// whole milliseconds, up to 24 h. Times Prefetch, what of it is above 5/6 of the Conn's ConsumerTimeout is not granted
	// to a handler. Default 5 min.
	MaxDeadline time.Duration

	// ShutdownTimeout is how long handlers may go on after Run's context has ended. Default 30 s; -1 for as long as their
	// requests' deadlines let them.
	ShutdownTimeout time.Duration

	// Declare is the mode of queue, exchange and bindings.
	Declare reconnect.Declare
}

const (
	maxName            = 200
	defaultMaxDeadline = 5 * time.Minute
)

// Topology is what requests need on the broker: the queue, which is classic and durable, with MaxDeadline as its TTL, and
// the exchange with its bindings when there is one. A Server declares it; handing it to reconnect.Conn.Declare does so earlier.
func (c ServerConfig) Topology(queue string) reconnect.Topology {
	c = c.withDefaults()
	args := amqp.Table{amqp.QueueMessageTTLArg: c.MaxDeadline.Milliseconds()}
	if c.MaxLength > 0 {
		args[amqp.QueueMaxLenArg] = c.MaxLength
		args[amqp.QueueOverflowArg] = amqp.QueueOverflowRejectPublish
	}
	t := reconnect.Topology{Queues: []reconnect.Queue{
		{Name: queue, Type: amqp.QueueTypeClassic, Arguments: args, Declare: c.Declare}}}
	if c.Exchange != "" {
		t.Exchanges = []reconnect.Exchange{{Name: c.Exchange, Kind: amqp.ExchangeDirect, Declare: c.Declare}}
		for _, key := range c.Keys {
			t.Bindings = append(t.Bindings, reconnect.Binding{Exchange: c.Exchange, Key: key, Queue: queue})
		}
	}
	return t
}

func (c ServerConfig) withDefaults() ServerConfig {
	if c.MaxDeadline == 0 {
		c.MaxDeadline = defaultMaxDeadline
	}
	if c.Prefetch == 0 {
		c.Prefetch = 1
	}
	return c
}

// validate returns every fault of c at once, but those that the consumer loop finds.
func (c ServerConfig) validate(queue string) error {
	faults := []error{wire.Name("queue", queue)}
	bad := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if len(queue) > maxName {
		bad("queue: %d bytes, at most %d", len(queue), maxName)
	}
	switch {
	case c.Exchange == "" && len(c.Keys) > 0:
		bad("Keys: without an Exchange")
	case c.Exchange != "" && len(c.Keys) == 0:
		bad("Keys: missing beside Exchange")
	case c.Exchange != "":
		faults = append(faults, wire.Name("Exchange", c.Exchange))
	}
	for i, key := range c.Keys {
		faults = append(faults, wire.ShortString(fmt.Sprintf("Keys[%d]", i), key))
	}
	if c.Prefetch < 1 || c.Prefetch > math.MaxUint16 {
		bad("Prefetch: %d, must be between 1 and %d, or 0 for 1", c.Prefetch, math.MaxUint16)
	}
	if c.MaxLength < 0 {
		bad("MaxLength: %d, must be positive, or 0 for none", c.MaxLength)
	}
	if d := c.MaxDeadline; d < 0 || d > maxExpiration || d%time.Millisecond != 0 {
		bad("MaxDeadline: %v, must be whole milliseconds up to %v, or 0 for %v", d, maxExpiration, defaultMaxDeadline)
	}
	for i, prefix := range c.ReplyTo {
		if prefix == "" {
			bad("ReplyTo[%d]: empty, which would allow every queue", i)
		}
	}
	if c.Declare < reconnect.Active || c.Declare > reconnect.Skip {
		bad("Declare: %d is not a mode", c.Declare)
	}
	return errors.Join(faults...)
}

// handlerTimeout is what a handler gets at most: the deadline, but no more than the broker lets a delivery go unacknowledged.
func (c ServerConfig) handlerTimeout(consumerTimeout time.Duration) time.Duration {
	if consumerTimeout <= 0 {
		return c.MaxDeadline
	}
	return min(c.MaxDeadline, max(1, consumerTimeout/6*5/time.Duration(max(1, c.Prefetch))))
}
