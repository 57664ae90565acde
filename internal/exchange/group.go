package exchange

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/wire"
	"github.com/warrenmq/warren/reconnect"
)

// group is a durable quorum queue from which nothing gets lost, with its dead-letter queue: what the instances of one
// group share.
type group struct {
	Name               string
	DeliveryLimit      int
	MaxLength          int64
	TTL                time.Duration
	DeadLetterExchange string
	Arguments          amqp.Table
	Declare            reconnect.Declare
}

const (
	maxName              = 200 // leaves room for what is appended
	defaultDeliveryLimit = 20
	// dlqDeliveryLimit is out of reach: up to RabbitMQ 4.2 looking at a message counts, and the queue has no dead-letter
	// target of its own, so a message over the limit would be gone.
	dlqDeliveryLimit = 1_000_000
	maxTTL           = math.MaxUint32 * time.Millisecond
)

// Arguments of queues.
const (
	argDeadLetterExchange = "x-dead-letter-exchange"
	argDeadLetterKey      = "x-dead-letter-routing-key"
	argDeadLetterStrategy = "x-dead-letter-strategy"
	argDeliveryLimit      = "x-delivery-limit"
	argExpires            = "x-expires"
	argMaxLength          = "x-max-length"
	argMaxPriority        = "x-max-priority"
	argMessageTTL         = "x-message-ttl"
	argOverflow           = "x-overflow"
	argSingleActive       = "x-single-active-consumer"
)

// DeadLetterQueue is the name of the queue in which failures end.
func (g group) DeadLetterQueue() string { return g.Name + ".dlq" }

// Topology is the dead-letter exchange when one is named, the dead-letter queue, then the queue.
func (g group) Topology() reconnect.Topology {
	t := reconnect.Topology{Queues: []reconnect.Queue{
		{Name: g.DeadLetterQueue(), Arguments: amqp.Table{argDeliveryLimit: int64(dlqDeliveryLimit)}, Declare: g.Declare},
		{Name: g.Name, Type: amqp.QueueTypeQuorum, Arguments: g.arguments(), Declare: g.Declare},
	}}
	if g.DeadLetterExchange != "" {
		t.Exchanges = []reconnect.Exchange{{Name: g.DeadLetterExchange, Kind: amqp.ExchangeDirect, Declare: g.Declare}}
		t.Bindings = []reconnect.Binding{{Exchange: g.DeadLetterExchange, Key: g.DeadLetterQueue(), Queue: g.DeadLetterQueue()}}
	}
	return t
}

func (g group) arguments() amqp.Table {
	args := amqp.Table{
		argOverflow:           amqp.QueueOverflowRejectPublish, // a full queue says so, instead of losing the oldest
		argDeliveryLimit:      int64(cmp.Or(g.DeliveryLimit, defaultDeliveryLimit)),
		argDeadLetterExchange: g.DeadLetterExchange,
		argDeadLetterKey:      g.DeadLetterQueue(),
		argDeadLetterStrategy: "at-least-once", // needs the overflow above
	}
	if g.MaxLength > 0 {
		args[argMaxLength] = g.MaxLength
	}
	if g.TTL > 0 {
		args[argMessageTTL] = g.TTL.Milliseconds()
	}
	for name, value := range g.Arguments {
		args[name] = value
	}
	return args
}

// Validate returns every fault of the description at once. nameField is what the caller's type calls the name, and common
// the mode in force for the whole Conn.
func (g group) Validate(nameField string, common reconnect.Declare) error {
	faults := []error{
		existingName(nameField, g.Name, max(g.Declare, common)), atMost(nameField, g.Name, maxName),
		limits(g.MaxLength, g.TTL), mode("Declare", g.Declare),
		arguments(g.Arguments, nameField),
	}
	if g.DeliveryLimit < 0 {
		faults = append(faults, fmt.Errorf("DeliveryLimit: %d, must be positive, or 0 for %d", g.DeliveryLimit, defaultDeliveryLimit))
	}
	if g.DeadLetterExchange != "" {
		faults = append(faults, existingName("DeadLetterExchange", g.DeadLetterExchange, max(g.Declare, common)))
	}
	return errors.Join(faults...)
}

func limits(maxLength int64, ttl time.Duration) error {
	var faults []error
	if maxLength < 0 {
		faults = append(faults, fmt.Errorf("MaxLength: %d, must be positive, or 0 for the default", maxLength))
	}
	if ttl < 0 || ttl > maxTTL || ttl%time.Millisecond != 0 {
		faults = append(faults, fmt.Errorf("TTL: %v, must be whole milliseconds up to %v, or 0 for none", ttl, maxTTL))
	}
	return errors.Join(faults...)
}

// arguments refuses those that a field sets, or that would undo what a subscription promises.
func arguments(args amqp.Table, nameField string) error {
	faults := []error{wire.Table("Arguments", args)}
	fields := map[string]string{
		argMaxLength: "MaxLength", argOverflow: "MaxLength", argMessageTTL: "TTL", argDeliveryLimit: "DeliveryLimit",
		argDeadLetterExchange: "DeadLetterExchange", argDeadLetterKey: nameField, argDeadLetterStrategy: "DeadLetterExchange",
	}
	refused := map[string]string{
		amqp.QueueTypeArg: "the type is given by the kind of subscription",
		argSingleActive:   "would hold up the instances of a group",
		argMaxPriority:    "only classic queues hand out by priority",
		argExpires:        "deletes a queue together with its messages",
	}
	for name := range args {
		if field, set := fields[name]; set {
			faults = append(faults, fmt.Errorf("Arguments: %s is set by %s", name, field))
		}
		if why, bad := refused[name]; bad {
			faults = append(faults, fmt.Errorf("Arguments: %s: %s", name, why))
		}
	}
	slices.SortFunc(faults, func(a, b error) int { return cmp.Compare(text(a), text(b)) }) // a map has no order
	return errors.Join(faults...)
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func atMost(field, s string, limit int) error {
	if len(s) > limit {
		return fmt.Errorf("%s: %d bytes, at most %d", field, len(s), limit)
	}
	return nil
}
