package reconnect

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// lint returns what RabbitMQ 4.3 refuses of t, or takes for something else, whether or not an earlier one does. What is not
// ours to create is for others to mend.
func (t Topology) lint(mode Declare) []error {
	var faults []error
	kinds := map[string]string{}
	for _, e := range t.Exchanges {
		kinds[e.Name] = e.Kind
		if e.Declare.stricter(mode) == Active {
			faults = append(faults, e.lint()...)
		}
	}
	foreign := map[string]bool{}
	for _, q := range t.Queues {
		if foreign[q.Name] = q.Declare.stricter(mode) != Active && !q.Exclusive; !foreign[q.Name] {
			faults = append(faults, q.lint()...)
		}
	}
	for _, b := range t.Bindings {
		if mode == Active && !foreign[b.Queue] {
			faults = append(faults, b.lint(kinds[b.Exchange])...)
		}
	}
	return faults
}

// lintError is the Err of a TopologyError that no broker has said yet.
type lintError struct{ why string }

func (e *lintError) Error() string { return e.why }

func lint(at entity, argument string, value any, why string) error {
	return &TopologyError{Entity: at.String(), Argument: argument, Wanted: fmt.Sprint(value), Err: &lintError{why}}
}

// isLint reports whether err is about the future.
func isLint(err error) bool {
	var l *lintError
	return errors.As(err, &l)
}

const (
	never     = "RabbitMQ refuses it on this type of queue"
	from43    = "RabbitMQ refuses it from 4.3"
	withoutDL = "RabbitMQ refuses it without x-dead-letter-exchange"
)

// argumentsNotFor says, by the type of queue, which arguments it does not take (F16).
var argumentsNotFor = map[string]map[string]string{
	amqp.QueueTypeClassic: {
		"x-delivery-limit": never, "x-dead-letter-strategy": never, "x-quorum-initial-group-size": never,
		"x-queue-mode": from43, "x-consumer-timeout": from43,
		"x-delayed-retry-type": from43, "x-delayed-retry-min": from43, "x-delayed-retry-max": from43,
		"x-queue-leader-locator": "RabbitMQ refuses it on this type of queue before 4.0",
	},
	amqp.QueueTypeQuorum: {
		"x-max-priority": never, "x-queue-mode": never, "x-queue-version": never,
		"x-delayed-retry-type": "RabbitMQ ignores it before 4.3, and a message that is returned comes again at once",
	},
}

func (q Queue) lint() []error {
	var faults []error
	kind, at := q.kind(), queueEntity(q.Name)
	for _, name := range slices.Sorted(maps.Keys(q.Arguments)) {
		value := q.Arguments[name]
		if why := argumentsNotFor[kind][name]; why != "" {
			faults = append(faults, lint(at, name, value, why))
		}
		switch name {
		case "x-queue-version":
			if n, _ := wide(value).(int64); kind == amqp.QueueTypeClassic && n != 2 {
				faults = append(faults, lint(at, name, value, "RabbitMQ takes only version 2 from 4.3"))
			}
		case "x-delivery-limit":
			if _, isNumber := wide(value).(int64); !isNumber {
				faults = append(faults, lint(at, name, value, "not a number: no limit to 4.1, and the default limit from 4.2"))
			}
		case "x-dead-letter-routing-key":
			if _, set := q.Arguments["x-dead-letter-exchange"]; !set {
				faults = append(faults, lint(at, name, value, withoutDL))
			}
		}
	}
	return faults
}

func (e Exchange) lint() []error {
	if e.Kind == "x-delayed-message" {
		return []error{lint(exchangeEntity(e.Name), "type", e.Kind, "its plugin is archived, and there is none for 4.3")}
	}
	return nil
}

// What binding keys may be: F75 and F76.
const (
	maxHashes = 2
	maxWeight = 10_000
)

// lint looks at the key of a binding of an exchange of a kind.
func (b Binding) lint(kind string) []error {
	switch kind {
	case amqp.ExchangeTopic:
		if n := slices.DeleteFunc(strings.Split(b.Key, "."), func(word string) bool { return word != "#" }); len(n) > maxHashes {
			return []error{lint(b.entity(), "routing key", b.Key, "RabbitMQ refuses more than two # from 4.3.5")}
		}
	case "x-consistent-hash":
		if n, err := strconv.Atoi(b.Key); err != nil || n < 1 {
			return []error{lint(b.entity(), "routing key", b.Key, "RabbitMQ refuses a weight that is not a positive number")}
		} else if n > maxWeight {
			return []error{lint(b.entity(), "routing key", b.Key, "RabbitMQ refuses a weight above 10000 from 4.2.6 and 4.3")}
		}
	}
	return nil
}
