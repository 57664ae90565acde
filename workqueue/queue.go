package workqueue

import (
	"errors"
	"fmt"
	"math"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/wire"
	"github.com/warrenmq/warren/reconnect"
)

// Queue describes a work queue. Only Name is required: the zero value of the rest is a durable quorum queue with a
// delivery limit and a dead-letter queue. The same value must be used by every producer and worker of the queue; to
// change an existing queue's arguments it has to be made anew: see Move.
type Queue struct {
	// Name of the queue, 1 to 200 bytes. What fails ends in the queue "<Name>.dlq", which is declared with it.
	Name string

	// Classic makes it a classic queue: on one node, without a delivery limit. MaxPriority implies it.
	Classic bool

	// SingleActiveConsumer lets only one of all workers' channels consume at a time, so that messages are handled one
	// after the other in the queue's order; another takes over when it is gone.
	SingleActiveConsumer bool

	// MaxPriority, 1 to 255, makes it a classic queue that hands out messages of a higher priority first. Each level
	// costs the broker memory: a few are enough. Default: no priorities.
	MaxPriority int

	// DeliveryLimit is how often a message may come back unsettled (its worker died, its channel was lost) before it is
	// dead-lettered: 20 allows 21 deliveries. Up to RabbitMQ 4.2 what is handed back at a graceful stop or a Pause counts
	// too, so do not set it low. Default 20. Quorum queues only.
	DeliveryLimit int

	// MaxLength is the number of ready messages above which publishes are refused with reconnect.ErrRefused; a quorum
	// queue takes a few more. The broker's own transfers into a full queue, such as dead letters of another one, wait and
	// are tried again every three minutes. Default: none.
	MaxLength int64

	// TTL is how long a message may wait before it is dead-lettered; whole milliseconds, up to 49 days. Default: no limit.
	TTL time.Duration

	// NoDeadLetter drops what fails, instead of keeping it in the dead-letter queue.
	NoDeadLetter bool

	// DeadLetterExchange names a durable direct exchange, declared with the queue, through which failures reach the
	// dead-letter queue. Default: the broker's default exchange, for which a user needs the right to write to
	// amq.default, and so to every queue.
	DeadLetterExchange string

	// Arguments are added to the queue's; those that the fields above set are refused.
	Arguments amqp.Table

	// Declare is the mode for the queue, its dead-letter queue and exchange.
	Declare reconnect.Declare
}

const (
	maxName              = 200 // leaves room for the suffixes of the names derived from it
	defaultDeliveryLimit = 20
	// dlqDeliveryLimit is out of reach: up to RabbitMQ 4.2 looking at a message counts, and the queue has no dead-letter
	// target of its own, so a message over the limit would be gone.
	dlqDeliveryLimit = 1_000_000
	maxTTL           = math.MaxUint32 * time.Millisecond
)

const (
	argDeadLetterExchange = "x-dead-letter-exchange"
	argDeadLetterKey      = "x-dead-letter-routing-key"
	argDeadLetterStrategy = "x-dead-letter-strategy"
	argDeliveryLimit      = "x-delivery-limit"
	argMaxLength          = "x-max-length"
	argMaxPriority        = "x-max-priority"
	argMessageTTL         = "x-message-ttl"
	argOverflow           = "x-overflow"
	argSingleActive       = "x-single-active-consumer"
)

// DeadLetterQueue is the name of the queue in which failures end, unless NoDeadLetter is set. It is a quorum queue with
// arguments of its own: it cannot be described by a Queue.
func (q Queue) DeadLetterQueue() string { return q.Name + ".dlq" }

// Topology is what the queue needs on the broker: the dead-letter exchange when one is named, the dead-letter queue, then
// the queue. Producers and workers declare it; handing it to reconnect.Conn.Declare does so earlier.
func (q Queue) Topology() reconnect.Topology {
	var t reconnect.Topology
	if !q.NoDeadLetter {
		t.Queues = append(t.Queues, reconnect.Queue{
			Name: q.DeadLetterQueue(), Arguments: amqp.Table{argDeliveryLimit: int64(dlqDeliveryLimit)}, Declare: q.Declare})
		if q.DeadLetterExchange != "" {
			t.Exchanges = append(t.Exchanges, reconnect.Exchange{Name: q.DeadLetterExchange, Kind: amqp.ExchangeDirect, Declare: q.Declare})
			t.Bindings = append(t.Bindings, reconnect.Binding{
				Exchange: q.DeadLetterExchange, Key: q.DeadLetterQueue(), Queue: q.DeadLetterQueue()})
		}
	}
	kind := amqp.QueueTypeQuorum
	if q.classic() {
		kind = amqp.QueueTypeClassic
	}
	t.Queues = append(t.Queues, reconnect.Queue{Name: q.Name, Type: kind, Arguments: q.arguments(), Declare: q.Declare})
	return t
}

func (q Queue) classic() bool { return q.Classic || q.MaxPriority > 0 }

func (q Queue) arguments() amqp.Table {
	args := amqp.Table{argOverflow: amqp.QueueOverflowRejectPublish} // a full queue says so, instead of losing the oldest
	if q.classic() {
		if q.MaxPriority > 0 {
			args[argMaxPriority] = int64(q.MaxPriority)
		}
	} else {
		limit := int64(q.DeliveryLimit)
		if limit == 0 {
			limit = defaultDeliveryLimit
		}
		args[argDeliveryLimit] = limit
	}
	if !q.NoDeadLetter {
		args[argDeadLetterExchange] = q.DeadLetterExchange
		args[argDeadLetterKey] = q.DeadLetterQueue()
		if !q.classic() {
			args[argDeadLetterStrategy] = "at-least-once" // needs the overflow above
		}
	}
	if q.MaxLength > 0 {
		args[argMaxLength] = q.MaxLength
	}
	if q.TTL > 0 {
		args[argMessageTTL] = q.TTL.Milliseconds()
	}
	if q.SingleActiveConsumer {
		args[argSingleActive] = true
	}
	for name, value := range q.Arguments {
		args[name] = value
	}
	return args
}

// validate returns every fault of the description at once.
func (q Queue) validate() error {
	faults := []error{wire.Name("Name", q.Name), wire.Table("Arguments", q.Arguments)}
	bad := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if len(q.Name) > maxName {
		bad("Name: %d bytes, at most %d", len(q.Name), maxName)
	}
	if q.MaxPriority < 0 || q.MaxPriority > math.MaxUint8 {
		bad("MaxPriority: %d, must be between 1 and 255, or 0 for none", q.MaxPriority)
	}
	if q.DeliveryLimit < 0 {
		bad("DeliveryLimit: %d, must be positive, or 0 for %d", q.DeliveryLimit, defaultDeliveryLimit)
	}
	if q.DeliveryLimit > 0 && q.classic() {
		bad("DeliveryLimit: a classic queue (Classic, MaxPriority) has none")
	}
	if q.MaxLength < 0 {
		bad("MaxLength: %d, must be positive, or 0 for none", q.MaxLength)
	}
	if q.TTL < 0 || q.TTL > maxTTL || q.TTL%time.Millisecond != 0 {
		bad("TTL: %v, must be whole milliseconds up to %v, or 0 for none", q.TTL, maxTTL)
	}
	if q.DeadLetterExchange != "" {
		faults = append(faults, wire.Name("DeadLetterExchange", q.DeadLetterExchange))
		if q.NoDeadLetter {
			bad("DeadLetterExchange: set beside NoDeadLetter")
		}
	}
	if q.Declare < reconnect.Active || q.Declare > reconnect.Skip {
		bad("Declare: %d is not a mode", q.Declare)
	}
	return errors.Join(append(faults, q.validateArguments())...)
}

// validateArguments refuses arguments that a field sets, or that would undo what the queue promises.
func (q Queue) validateArguments() error {
	var faults []error
	fields := map[string]string{
		amqp.QueueTypeArg: "Classic", argMaxPriority: "MaxPriority", argDeliveryLimit: "DeliveryLimit", argMaxLength: "MaxLength",
		argMessageTTL: "TTL", argSingleActive: "SingleActiveConsumer", argDeadLetterExchange: "DeadLetterExchange",
		argDeadLetterKey: "Name", argDeadLetterStrategy: "NoDeadLetter", argOverflow: "MaxLength",
	}
	for name := range q.Arguments {
		if field, set := fields[name]; set {
			faults = append(faults, fmt.Errorf("Arguments: %s is set by %s", name, field))
		}
	}
	if _, set := q.Arguments["x-expires"]; set {
		faults = append(faults, errors.New("Arguments: x-expires deletes a queue together with its messages"))
	}
	return errors.Join(faults...)
}
