package consistenthash

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/wire"
	"github.com/warrenmq/warren/reconnect"
)

// Partitions describes a set of partition queues and the exchange in front of them. Name and Count are required. The same
// value must be used by every publisher and consumer.
type Partitions struct {
	// Name of the exchange, 1 to 200 bytes. The queues are "<Name>.000" and on, what fails ends in "<Name>.dlq", and
	// "<Name>.partitions" is an empty queue that remembers Count and by whose consumers the instances count themselves.
	Name string

	// Count of the partitions, 1 to 1000, is the number of messages that can be handled at once, over all instances. It is
	// stored at the broker; who comes with another number gets ErrCountChanged. Only Resize changes it.
	Count int

	// Plugin has the broker hash, by its plugin rabbitmq_consistent_hash_exchange. Default: the publisher does it, which
	// needs no plugin and is stable over every version, restart and upgrade of the broker.
	Plugin bool

	// HashHeader or HashProperty, with Plugin only, is hashed instead of the routing key: a header, which then must be there
	// and be a string, or one of message_id, correlation_id and timestamp.
	HashHeader, HashProperty string

	// DeliveryLimit is how often a message may come back from an instance that crashed, or lost its connection, before it is
	// dead-lettered. Default 20.
	DeliveryLimit int

	// DeadLetterExchange names a durable direct exchange, declared with the queues, through which failures reach the
	// dead-letter queue. Default: the broker's default exchange, for which a user needs the right to write to
	// amq.default, and so to every queue.
	DeadLetterExchange string

	// Declare is the mode for everything here. Passive and Skip compare nothing: then a wrong Count is not noticed.
	Declare reconnect.Declare
}

const (
	maxName              = 200 // leaves room for the suffixes
	maxCount             = 1000
	defaultDeliveryLimit = 20
	dlqDeliveryLimit     = 1_000_000 // up to RabbitMQ 4.2 looking at a message counts, and the queue has no dead-letter target
)

const (
	pluginKind  = "x-consistent-hash"
	pluginName  = "rabbitmq_consistent_hash_exchange"
	weight      = "1" // the binding key of a plugin's exchange; equal for all, else the keys move at a restart
	argMaxCount = "x-max-length"
)

// properties are those that the plugin can hash.
var properties = []string{"message_id", "correlation_id", "timestamp"}

// Of returns the partition of a key, 0 to Count-1: hash, FNV-1a with 64 bits and then a jump consistent hash, which never changes.
// With Plugin only the broker knows, and it is -1.
func (p Partitions) Of(key string) int {
	if p.Plugin || p.Count < 1 {
		return -1
	}
	return hash(key, p.Count)
}

// Queue is the name of a partition's queue.
func (p Partitions) Queue(partition int) string { return fmt.Sprintf("%s.%03d", p.Name, partition) }

// DeadLetterQueue is the name of the queue in which failures end.
func (p Partitions) DeadLetterQueue() string { return p.Name + ".dlq" }

// guard is the name of the queue that remembers Count.
func (p Partitions) guard() string { return p.Name + ".partitions" }

// Topology is everything that the partitions need on the broker: the exchange, the queue that remembers Count, the dead-letter queue,
// and the partitions' queues, bound in their order. Publishers and consumers declare it, in steps, so that a wrong Count leaves nothing
// behind. Handing it to reconnect.Conn.Declare does so earlier, but in one step: a wrong Count is an error there, too, yet further
// queues are made and bound all the same, and with Plugin get keys that nobody consumes.
func (p Partitions) Topology() reconnect.Topology {
	return join(p.steps()...)
}

// steps are the topology in the order in which it is to be declared: what follows a failed one would do harm.
func (p Partitions) steps() []reconnect.Topology {
	steps := []reconnect.Topology{p.guardTopology(), {Exchanges: []reconnect.Exchange{p.exchange()}}, p.deadLetters()}
	for i := range p.Count {
		steps[2] = join(steps[2], p.partition(i))
	}
	return steps
}

func join(ts ...reconnect.Topology) (t reconnect.Topology) {
	for _, other := range ts {
		t.Exchanges = append(t.Exchanges, other.Exchanges...)
		t.Queues = append(t.Queues, other.Queues...)
		t.Bindings = append(t.Bindings, other.Bindings...)
	}
	return t
}

// guardTopology is the queue that remembers Count, in the one argument of a number that every broker compares and that does an empty
// queue no harm.
func (p Partitions) guardTopology() reconnect.Topology {
	return reconnect.Topology{Queues: []reconnect.Queue{{Name: p.guard(), Type: amqp.QueueTypeClassic, Declare: p.Declare,
		Arguments: amqp.Table{argMaxCount: int64(p.Count)}}}}
}

func (p Partitions) exchange() reconnect.Exchange {
	e := reconnect.Exchange{Name: p.Name, Kind: amqp.ExchangeDirect, Declare: p.Declare}
	if p.Plugin {
		e.Kind = pluginKind
		if p.HashHeader != "" {
			e.Arguments = amqp.Table{"hash-header": p.HashHeader}
		}
		if p.HashProperty != "" {
			e.Arguments = amqp.Table{"hash-property": p.HashProperty}
		}
	}
	return e
}

func (p Partitions) deadLetters() reconnect.Topology {
	t := reconnect.Topology{Queues: []reconnect.Queue{{Name: p.DeadLetterQueue(), Declare: p.Declare,
		Arguments: amqp.Table{"x-delivery-limit": int64(dlqDeliveryLimit)}}}}
	if p.DeadLetterExchange != "" {
		t.Exchanges = []reconnect.Exchange{{Name: p.DeadLetterExchange, Kind: amqp.ExchangeDirect, Declare: p.Declare}}
		t.Bindings = []reconnect.Binding{{Exchange: p.DeadLetterExchange, Key: p.DeadLetterQueue(), Queue: p.DeadLetterQueue()}}
	}
	return t
}

// partition is one queue with its one binding.
func (p Partitions) partition(i int) reconnect.Topology {
	return reconnect.Topology{
		Queues: []reconnect.Queue{{Name: p.Queue(i), Declare: p.Declare, Arguments: amqp.Table{
			"x-single-active-consumer":  true,
			"x-delivery-limit":          int64(cmp.Or(p.DeliveryLimit, defaultDeliveryLimit)),
			"x-dead-letter-exchange":    p.DeadLetterExchange,
			"x-dead-letter-routing-key": p.DeadLetterQueue(),
			"x-dead-letter-strategy":    "at-least-once", // needs the overflow
			"x-overflow":                amqp.QueueOverflowRejectPublish,
		}}},
		Bindings: []reconnect.Binding{{Exchange: p.Name, Key: p.bindingKey(i), Queue: p.Queue(i)}},
	}
}

// bindingKey is the queue's name rather than its number: a number would be a weight to the plugin's exchange, and spoil it, if a program
// without Plugin came to it by mistake.
func (p Partitions) bindingKey(i int) string {
	if p.Plugin {
		return weight
	}
	return p.Queue(i)
}

// validate returns every fault of the description at once.
func (p Partitions) validate() error {
	faults := []error{wire.Name("Name", p.Name), wire.ShortString("HashHeader", p.HashHeader)}
	bad := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if len(p.Name) > maxName {
		bad("Name: %d bytes, at most %d", len(p.Name), maxName)
	}
	if p.Count < 1 || p.Count > maxCount {
		bad("Count: %d, must be between 1 and %d", p.Count, maxCount)
	}
	switch {
	case !p.Plugin && p.HashHeader != "":
		bad("HashHeader: only with Plugin")
	case !p.Plugin && p.HashProperty != "":
		bad("HashProperty: only with Plugin")
	case p.HashHeader != "" && p.HashProperty != "":
		bad("HashHeader: set beside HashProperty, only one may be")
	case p.HashProperty != "" && !slices.Contains(properties, p.HashProperty):
		bad("HashProperty: %q is none of %q", p.HashProperty, properties)
	}
	if p.DeliveryLimit < 0 {
		bad("DeliveryLimit: %d, must be positive, or 0 for %d", p.DeliveryLimit, defaultDeliveryLimit)
	}
	if p.DeadLetterExchange != "" {
		faults = append(faults, wire.Name("DeadLetterExchange", p.DeadLetterExchange))
		if p.DeadLetterExchange == p.Name {
			bad("DeadLetterExchange: is the exchange of the partitions")
		}
	}
	if p.Declare < reconnect.Active || p.Declare > reconnect.Skip {
		bad("Declare: %d is not a mode", p.Declare)
	}
	return errors.Join(faults...)
}
