package reconnect

import (
	"errors"
	"fmt"
	"math"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/wire"
)

// Declare is how an entity is treated when a topology is declared.
type Declare int

const (
	// Active creates the entity, or compares it when it exists. It is the default.
	Active Declare = iota
	// Passive only checks that the entity exists: it belongs to somebody else. Nothing is bound to a passive queue.
	Passive
	// Skip does not look at the entity at all, for users without the right to.
	Skip
)

// Topology is what a program needs on the broker, as data. It is declared in the order exchanges, queues, bindings, after
// which the obsolete bindings are removed; within each kind in the order given, so that the targets of dead letters come
// before the queues that name them.
type Topology struct {
	Exchanges []Exchange
	Queues    []Queue
	Bindings  []Binding
	Obsolete  []Binding // bound by earlier versions: removed, and no error when absent
}

// Exchange is durable and not auto-deleted.
type Exchange struct {
	Name      string     // 1..255 bytes
	Kind      string     // "direct", "fanout", "topic", "headers", or a plugin's; not needed when passive or skipped
	Alternate string     // exchange for messages that no binding takes
	Internal  bool       // only other exchanges may publish to it
	Arguments amqp.Table // further ones
	Declare   Declare
}

// Queue is durable, or exclusive to the Conn's consuming link. An exclusive one is declared whatever Config.Declare says.
type Queue struct {
	Name      string     // 1..255 bytes
	Type      string     // "quorum", "classic", "stream"; default "quorum", and "classic" when Exclusive
	Exclusive bool       // declared, bound and consumed on the consuming link; gone with it
	Arguments amqp.Table // sent as they are, numbers as 64 bits; x-queue-type is added
	Declare   Declare
}

// Binding leads messages of an exchange to a queue or to another exchange.
type Binding struct {
	Exchange, Key     string
	Queue, ToExchange string // one of the two
	Arguments         amqp.Table
}

// entity names one thing of a topology; it is the key under which it is remembered.
type entity struct{ kind, name string }

func (e entity) String() string {
	if e.kind == "binding" {
		return e.kind + " " + e.name // whose parts are quoted already
	}
	return fmt.Sprintf("%s %q", e.kind, e.name)
}

func exchangeEntity(name string) entity { return entity{"exchange", name} }
func queueEntity(name string) entity    { return entity{"queue", name} }

func (b Binding) entity() entity {
	to := fmt.Sprintf("queue %q", b.Queue)
	if b.ToExchange != "" {
		to = fmt.Sprintf("exchange %q", b.ToExchange)
	}
	name := fmt.Sprintf("%q -> %s by %q", b.Exchange, to, b.Key)
	if len(b.Arguments) > 0 {
		name += fmt.Sprintf(" with %v", map[string]any(b.Arguments))
	}
	return entity{"binding", name}
}

// items validates t and returns what has to be declared of it, in order, with defaults filled in and the stricter of the
// entity's mode and the given one. Exclusive queues take only their own: nobody else can have created them.
func (t Topology) items(mode Declare) ([]item, error) {
	var (
		faults  []error
		out     []item
		foreign = map[string]bool{} // queues to which nothing may be bound
		private = map[string]bool{} // exclusive queues
	)
	// First, and alone: a table that cannot be sent may not be printable either, such as one that holds itself.
	for _, b := range slices.Concat(t.Bindings, t.Obsolete) {
		faults = append(faults, wire.Table(fmt.Sprintf("binding to exchange %q: Arguments", b.Exchange), b.Arguments))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	for _, e := range t.Exchanges {
		e.Declare = e.Declare.stricter(mode)
		e.Arguments = normalize(e.Arguments)
		faults = append(faults, e.validate())
		out = append(out, item{entity: exchangeEntity(e.Name), exchange: &e})
	}
	for _, q := range t.Queues {
		if !q.Exclusive {
			q.Declare = q.Declare.stricter(mode)
		}
		q.Arguments = normalize(q.Arguments)
		q.Type = q.kind()
		faults = append(faults, q.validate())
		foreign[q.Name] = q.Declare != Active
		private[q.Name] = q.Exclusive
		out = append(out, item{entity: queueEntity(q.Name), queue: &q, exclusive: q.Exclusive})
	}
	bind := func(b Binding, unbind bool) {
		b.Arguments = normalize(b.Arguments)
		faults = append(faults, b.validate())
		if !foreign[b.Queue] && (mode == Active || private[b.Queue]) {
			out = append(out, item{entity: b.entity(), binding: &b, unbind: unbind, exclusive: private[b.Queue]})
		}
	}
	for _, b := range t.Bindings {
		bind(b, false)
	}
	for _, b := range t.Obsolete {
		if slices.ContainsFunc(t.Bindings, func(kept Binding) bool { return kept.entity() == b.entity() }) {
			faults = append(faults, fmt.Errorf("%s: Obsolete: listed in Bindings, too", b.entity()))
		}
		bind(b, true)
	}
	return out, errors.Join(faults...)
}

func (q Queue) kind() string {
	switch {
	case q.Type != "":
		return q.Type
	case q.Exclusive:
		return amqp.QueueTypeClassic
	default:
		return amqp.QueueTypeQuorum
	}
}

func (e Exchange) validate() error {
	at := exchangeEntity(e.Name).String()
	faults := []error{e.Declare.name(at, e.Name), wire.ShortString(at+": Kind", e.Kind),
		wire.ShortString(at+": Alternate", e.Alternate), wire.Table(at+": Arguments", e.Arguments), e.Declare.validate(at)}
	if e.Declare == Active && e.Kind == "" {
		faults = append(faults, fmt.Errorf("%s: Kind: empty", at))
	}
	if _, set := e.Arguments[alternateExchange]; set {
		faults = append(faults, fmt.Errorf("%s: Arguments: %s is set by Alternate", at, alternateExchange))
	}
	return errors.Join(faults...)
}

func (q Queue) validate() error {
	at := queueEntity(q.Name).String()
	faults := []error{q.Declare.name(at, q.Name), wire.Table(at+": Arguments", q.Arguments), q.Declare.validate(at)}
	switch {
	case !slices.Contains([]string{amqp.QueueTypeClassic, amqp.QueueTypeQuorum, amqp.QueueTypeStream}, q.Type):
		faults = append(faults, fmt.Errorf("%s: Type: %q is not quorum, classic or stream", at, q.Type))
	case q.Exclusive && q.Type != amqp.QueueTypeClassic:
		faults = append(faults, fmt.Errorf("%s: Type: an exclusive queue can only be classic", at))
	}
	if _, set := q.Arguments[amqp.QueueTypeArg]; set {
		faults = append(faults, fmt.Errorf("%s: Arguments: %s is set by Type", at, amqp.QueueTypeArg))
	}
	return errors.Join(faults...)
}

func (b Binding) validate() error {
	at := b.entity().String()
	faults := []error{wire.ShortString(at+": Exchange", b.Exchange), wire.ShortString(at+": Key", b.Key),
		wire.ShortString(at+": Queue", b.Queue), wire.ShortString(at+": ToExchange", b.ToExchange)}
	if b.Exchange == "" {
		faults = append(faults, fmt.Errorf("%s: Exchange: empty, nothing can be bound to the default exchange", at))
	}
	if (b.Queue == "") == (b.ToExchange == "") {
		faults = append(faults, fmt.Errorf("%s: Queue, ToExchange: one of the two must be set", at))
	}
	return errors.Join(faults...)
}

// stricter returns the stricter of two modes, and keeps a value that is none.
func (d Declare) stricter(mode Declare) Declare {
	if d < Active {
		return d
	}
	return max(d, mode)
}

// name checks the name of an entity; what exists already may have one that cannot be given any more.
func (d Declare) name(at, name string) error {
	if d == Active {
		return wire.Name(at+": Name", name)
	}
	return errors.Join(wire.ShortString(at+": Name", name), notEmpty(at+": Name", name))
}

func (d Declare) validate(at string) error {
	if d < Active || d > Skip {
		return fmt.Errorf("%s: Declare: %d is not a mode", at, d)
	}
	return nil
}

// normalize returns a copy of t in which every integer has 64 bits: the driver writes a Go int as 32, so that a time to
// live above 24 days would arrive as a negative one. Values of named types, a time.Duration for one, are left for the
// validation to refuse: their unit is not the broker's.
func normalize(t amqp.Table) amqp.Table {
	if len(t) == 0 {
		return nil
	}
	out := make(amqp.Table, len(t))
	for name, value := range t {
		out[name] = wide(value)
	}
	return out
}

func wide(value any) any {
	switch v := value.(type) {
	case int:
		return int64(v)
	case int8:
		return int64(v)
	case int16:
		return int64(v)
	case int32:
		return int64(v)
	case uint8:
		return int64(v)
	case uint16:
		return int64(v)
	case uint32:
		return int64(v)
	case uint:
		if uint64(v) <= math.MaxInt64 {
			return int64(v)
		}
	case uint64:
		if v <= math.MaxInt64 {
			return int64(v)
		}
	}
	return value
}
