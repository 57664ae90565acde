package retry

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/wire"
	"github.com/warrenmq/warren/reconnect"
)

const (
	maxName = 200 // leaves room for the suffixes
	// dlqDeliveryLimit is out of reach: up to RabbitMQ 4.2 looking at a message counts, and the queue has no dead-letter
	// target of its own, so a message over the limit would be gone. Every pattern package declares the queue with the same.
	dlqDeliveryLimit = 1_000_000
)

// deadLetterQueue is where failures of queue end.
func deadLetterQueue(queue string) string { return queue + ".dlq" }

// delayQueue is where what goes back to queue waits for d.
func delayQueue(queue string, d time.Duration) string {
	return queue + ".retry." + strconv.FormatInt(d.Milliseconds(), 10)
}

// delayedExchange is the plugin's exchange in front of queue.
func delayedExchange(queue string) string { return queue + ".delayed" }

// Topology is what retrying the messages of queue needs on the broker: the dead-letter queue and a queue for each delay, or
// the plugin's exchange. The queue itself is not part of it. New declares it; handing it to reconnect.Conn.Declare does so
// earlier. It is empty for a policy that New refuses.
func (p Policy) Topology(queue string) reconnect.Topology {
	if p.validate() != nil {
		return reconnect.Topology{}
	}
	p = p.withDefaults()
	var t reconnect.Topology
	add := func(name string, args amqp.Table) {
		t.Queues = append(t.Queues, reconnect.Queue{Name: name, Arguments: args, Declare: p.Declare})
		if p.DeadLetterExchange != "" {
			t.Bindings = append(t.Bindings, reconnect.Binding{Exchange: p.DeadLetterExchange, Key: name, Queue: name})
		}
	}
	if p.DeadLetterExchange != "" {
		t.Exchanges = append(t.Exchanges, reconnect.Exchange{Name: p.DeadLetterExchange, Kind: amqp.ExchangeDirect, Declare: p.Declare})
	}
	add(deadLetterQueue(queue), amqp.Table{"x-delivery-limit": int64(dlqDeliveryLimit)})
	switch {
	case p.DelayedPlugin:
		p.addDelayedExchange(&t, queue)
	default:
		for _, d := range p.queues() {
			add(delayQueue(queue, d), p.delayArguments(queue, d))
		}
	}
	if p.DeadLetterExchange != "" && p.Declare == reconnect.Active {
		t.Bindings = append(t.Bindings, reconnect.Binding{Exchange: p.DeadLetterExchange, Key: queue, Queue: queue})
	}
	return t
}

// delayArguments are those of a queue in which everything waits equally long, so that nothing waits behind something
// longer, and from which the broker moves it to queue at least once. It has no consumers, and no x-expires, with which its
// messages would vanish.
func (p Policy) delayArguments(queue string, d time.Duration) amqp.Table {
	return amqp.Table{
		"x-message-ttl":             d.Milliseconds(),
		"x-dead-letter-exchange":    p.DeadLetterExchange,
		"x-dead-letter-routing-key": queue,
		"x-dead-letter-strategy":    "at-least-once",                 // needs
		"x-overflow":                amqp.QueueOverflowRejectPublish, // this
		"x-delivery-limit":          int64(dlqDeliveryLimit),         // nothing is delivered from it, but somebody may look
	}
}

func (p Policy) addDelayedExchange(t *reconnect.Topology, queue string) {
	t.Exchanges = append(t.Exchanges, reconnect.Exchange{Name: delayedExchange(queue), Kind: delayedKind,
		Arguments: amqp.Table{"x-delayed-type": amqp.ExchangeDirect}, Declare: p.Declare})
	if p.Declare == reconnect.Active {
		t.Bindings = append(t.Bindings, reconnect.Binding{Exchange: delayedExchange(queue), Key: queue, Queue: queue})
	}
}

// checkName returns what is wrong with the name of a queue.
func checkName(queue string) error {
	switch {
	case queue == "":
		return errors.New("queue: empty")
	case len(queue) > maxName:
		return fmt.Errorf("queue: %d bytes, at most %d", len(queue), maxName)
	}
	return wire.ShortString("queue", queue)
}

// validateQueue checks the name of the queue whose messages are tried again.
func (p Policy) validateQueue(queue string, common reconnect.Declare) error {
	faults := []error{checkName(queue)}
	if p.DeadLetterExchange != "" {
		check := wire.ShortString
		if max(p.Declare, common) == reconnect.Active {
			check = wire.Name
		}
		faults = append(faults, check("DeadLetterExchange", p.DeadLetterExchange))
	}
	return errors.Join(faults...)
}
