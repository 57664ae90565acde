package reconnect

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/prefix"
)

// item is one entity with its description in the form in which it is compared, remembered and declared.
type item struct {
	entity    entity
	exclusive bool // only on the consuming link
	exchange  *Exchange
	queue     *Queue
	binding   *Binding
	unbind    bool
}

// declare puts the item on the broker. A refusal closes ch.
func (it item) declare(ch *amqp.Channel) error {
	switch {
	case it.exchange != nil:
		return it.exchange.declare(ch)
	case it.queue != nil:
		return it.queue.declare(ch)
	case it.unbind:
		return it.binding.unbind(ch)
	default:
		return it.binding.bind(ch)
	}
}

func (it item) mode() Declare {
	switch {
	case it.exchange != nil:
		return it.exchange.Declare
	case it.queue != nil:
		return it.queue.Declare
	}
	return Active
}

// plugin reports whether the item creates an exchange of a kind that not every broker has.
func (it item) plugin() bool {
	return it.exchange != nil && it.exchange.Declare == Active && !builtin(it.exchange.Kind)
}

func builtin(kind string) bool {
	return slices.Contains([]string{amqp.ExchangeDirect, amqp.ExchangeFanout, amqp.ExchangeTopic, amqp.ExchangeHeaders}, kind)
}

// alternateExchange is the argument behind Exchange.Alternate.
const alternateExchange = "alternate-exchange"

func (e Exchange) declare(ch *amqp.Channel) error {
	args := e.Arguments
	if e.Alternate != "" {
		args = with(args, alternateExchange, e.Alternate)
	}
	switch e.Declare {
	case Skip:
		return nil
	case Passive:
		return ch.ExchangeDeclarePassive(e.Name, e.Kind, true, false, e.Internal, false, nil)
	}
	return ch.ExchangeDeclare(e.Name, e.Kind, true, false, e.Internal, false, args)
}

func (q Queue) declare(ch *amqp.Channel) error {
	var err error
	switch q.Declare {
	case Active:
		_, err = ch.QueueDeclare(q.Name, !q.Exclusive, false, q.Exclusive, false, with(q.Arguments, amqp.QueueTypeArg, q.Type))
	case Passive:
		_, err = ch.QueueDeclarePassive(q.Name, !q.Exclusive, false, q.Exclusive, false, nil)
	}
	return err
}

func (b Binding) bind(ch *amqp.Channel) error {
	if b.ToExchange != "" {
		return ch.ExchangeBind(b.ToExchange, b.Key, b.Exchange, false, b.Arguments)
	}
	return ch.QueueBind(b.Queue, b.Key, b.Exchange, false, b.Arguments)
}

func (b Binding) unbind(ch *amqp.Channel) error {
	if b.ToExchange != "" {
		return ch.ExchangeUnbind(b.ToExchange, b.Key, b.Exchange, false, b.Arguments)
	}
	return ch.QueueUnbind(b.Queue, b.Key, b.Exchange, b.Arguments)
}

// with returns a copy of t with one entry more, or another one.
func with(t amqp.Table, name string, value any) amqp.Table {
	out := make(amqp.Table, len(t)+1)
	maps.Copy(out, t)
	out[name] = value
	return out
}

// inequivalent finds the argument and its two values in the broker's words, which are all it says them in.
var inequivalent = regexp.MustCompile(`(?s)inequivalent arg '([^']*)' for .*: received (.*) but current is (.*)$`)

// inequivalentCut finds the argument alone: the broker cuts its words off at 255 bytes, of which a long name leaves no room
// for values.
var inequivalentCut = regexp.MustCompile(`inequivalent arg '([^']*)' for `)

// notTold stands for the existing value then.
const notTold = "not told"

// quoted finds the value in "the value '5' of type 'long'" and in "'true'". A name such as x-consistent-hash is in two
// pairs of quotes: the broker quotes what Erlang has quoted.
var quoted = regexp.MustCompile(`(?s)^(?:the value '(.*)' of type '[^']*'|''(.+)''|'(.*)')$`)

// explain turns what the broker answered into the error that callers get: a TopologyError for what only a person can
// mend, otherwise the broker's own error with the entity named.
func (it item) explain(err error) error {
	switch amqpCode(err) {
	case amqp.AccessRefused, amqp.PreconditionFailed, amqp.SyntaxError, amqp.CommandInvalid, amqp.NotAllowed, amqp.NotImplemented:
		fault := &TopologyError{Entity: it.entity.String(), Err: err}
		if m := inequivalent.FindStringSubmatch(reason(err)); m != nil {
			fault.Argument, fault.Wanted, fault.Existing = m[1], unquote(m[2]), unquote(m[3])
		} else if m := inequivalentCut.FindStringSubmatch(reason(err)); m != nil {
			fault.Argument, fault.Wanted, fault.Existing = m[1], it.described(m[1]), notTold
		} else if right := it.missingRight(reason(err)); right != "" {
			fault.Argument, fault.Wanted, fault.Existing = "right", right, "none"
		}
		return fault
	}
	return prefix.Wrap("reconnect: "+it.entity.String(), err)
}

// described is the value that the item gives an argument or a property.
func (it item) described(argument string) string {
	all := amqp.Table{"durable": !it.exclusive, "auto_delete": false}
	if q := it.queue; q != nil {
		maps.Copy(all, q.Arguments)
		all[amqp.QueueTypeArg] = q.Type
	}
	if e := it.exchange; e != nil {
		maps.Copy(all, e.Arguments)
		all["type"], all["internal"] = e.Kind, e.Internal
		if e.Alternate != "" {
			all[alternateExchange] = e.Alternate
		}
	}
	if value, is := all[argument]; is {
		return fmt.Sprint(value)
	}
	return noValue
}

func reason(err error) string {
	var e *amqp.Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return err.Error()
}

func unquote(value string) string {
	if m := quoted.FindStringSubmatch(strings.TrimSpace(value)); m != nil {
		return m[1] + m[2] + m[3] // one of them
	}
	return value
}
