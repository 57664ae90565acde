package reconnect

import (
	"regexp"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// declared is what a comparison declares: what is wanted, with what is known to be otherwise taken over from what exists, so
// that the broker goes on to the next difference.
type declared struct {
	queue                         bool // or an exchange
	name, kind                    string
	durable, autoDelete, internal bool
	args                          amqp.Table // its own
}

// compare declares it on ch, with further arguments.
func (w declared) compare(ch *amqp.Channel, guards []string) error {
	if !w.queue {
		return ch.ExchangeDeclare(w.name, w.kind, w.durable, w.autoDelete, w.internal, false, w.args)
	}
	args := w.args
	for _, guard := range guards {
		args = with(args, guard, int64(1))
	}
	_, err := ch.QueueDeclare(w.name, w.durable, w.autoDelete, false, false, args)
	return err
}

// adopt takes over what exists. It returns false when that cannot be declared.
func (w *declared) adopt(d difference) bool {
	value, ok := d.value(w.args[d.argument])
	is, isBool := value.(bool)
	switch d.argument {
	case "type":
		w.kind, ok = value.(string)
		return ok
	case "durable":
		w.durable = is
		return isBool
	case "auto_delete":
		w.autoDelete = is
		return isBool
	case "internal":
		w.internal = is
		return isBool
	case "exclusive":
		return false // another connection's
	}
	switch {
	case !ok:
		return false
	case value == nil:
		delete(w.args, d.argument)
	default:
		w.args[d.argument] = value
	}
	return true
}

// difference is one that the broker names, in its words.
type difference struct{ argument, wanted, existing string }

// noValue is what the broker says of an argument that is not there.
const noValue = "none"

// differenceIn finds it in the broker's refusal of a declaration.
func differenceIn(err error) (d difference, is bool) {
	if amqpCode(err) != amqp.PreconditionFailed {
		return difference{}, false
	}
	if m := inequivalent.FindStringSubmatch(reason(err)); m != nil {
		return difference{argument: m[1], wanted: strings.TrimSpace(m[2]), existing: strings.TrimSpace(m[3])}, true
	}
	if m := inequivalentCut.FindStringSubmatch(reason(err)); m != nil {
		return difference{argument: m[1], existing: notTold}, true
	}
	return difference{}, false
}

// typed finds value and type in "the value '5' of type 'long'".
var typed = regexp.MustCompile(`(?s)^the value '(.*)' of type '(.*)'$`)

// value returns what exists as it would be declared, nil when it is none. The broker names its type only when that is not the one
// of what was sent.
func (d difference) value(sent any) (value any, ok bool) {
	switch d.existing {
	case noValue:
		return nil, true
	case notTold:
		return nil, false
	}
	text, kind := unquote(d.existing), ""
	if m := typed.FindStringSubmatch(d.existing); m != nil {
		kind = m[2]
	}
	_, sentNumber := sent.(int64)
	_, sentText := sent.(string)
	switch {
	case kind == "longstr" || kind == "" && sentText:
		return text, true
	case kind == "bool":
		is, err := strconv.ParseBool(text)
		return is, err == nil
	case kind != "" || sentNumber:
		n, err := strconv.ParseInt(text, 10, 64)
		return n, err == nil
	}
	if is, err := strconv.ParseBool(text); err == nil { // a property, or an argument like that
		return is, true
	}
	return text, true
}
