package reconnect

import (
	"errors"
	"fmt"
	"math"
	"reflect"
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

// Queue is durable, or exclusive to the Conn's consuming link.
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

func (e entity) String() string { return fmt.Sprintf("%s %q", e.kind, e.name) }

func exchangeEntity(name string) entity { return entity{"exchange", name} }
func queueEntity(name string) entity    { return entity{"queue", name} }

func (b Binding) entity() entity {
	to := "queue " + b.Queue
	if b.ToExchange != "" {
		to = "exchange " + b.ToExchange
	}
	return entity{"binding", fmt.Sprintf("%s -> %s by %s%v", b.Exchange, to, b.Key, b.Arguments)}
}

// item is one entity with its description in the form in which it is compared, remembered and declared.
type item struct {
	entity    entity
	exclusive bool // only on the consuming link
	exchange  *Exchange
	queue     *Queue
	binding   *Binding
	unbind    bool
}

// items validates t and returns what has to be declared of it, in order, with defaults filled in and the stricter of the
// entity's mode and the given one.
func (t Topology) items(mode Declare) ([]item, error) {
	var (
		faults  []error
		out     []item
		foreign = map[string]bool{} // queues to which nothing may be bound
		private = map[string]bool{} // exclusive queues
	)
	for _, e := range t.Exchanges {
		e.Declare = max(e.Declare, mode)
		e.Arguments = normalize(e.Arguments)
		faults = append(faults, e.validate())
		out = append(out, item{entity: exchangeEntity(e.Name), exchange: &e})
	}
	for _, q := range t.Queues {
		q.Declare = max(q.Declare, mode)
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
		if mode == Active && !foreign[b.Queue] {
			out = append(out, item{entity: b.entity(), binding: &b, unbind: unbind, exclusive: private[b.Queue]})
		}
	}
	for _, b := range t.Bindings {
		bind(b, false)
	}
	for _, b := range t.Obsolete {
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
	faults := []error{wire.ShortString(at+": Name", e.Name), wire.ShortString(at+": Alternate", e.Alternate),
		wire.ShortString(at+": Kind", e.Kind), wire.Table(at+": Arguments", e.Arguments), e.Declare.validate(at)}
	if e.Name == "" {
		faults = append(faults, errors.New("exchange: Name: empty, the default exchange needs no declaring"))
	}
	if e.Declare == Active {
		if e.Kind == "" {
			faults = append(faults, fmt.Errorf("%s: Kind: empty", at))
		}
		faults = append(faults, wire.Name(at+": Name", e.Name))
	}
	return errors.Join(faults...)
}

func (q Queue) validate() error {
	at := queueEntity(q.Name).String()
	faults := []error{wire.ShortString(at+": Name", q.Name), wire.Table(at+": Arguments", q.Arguments), q.Declare.validate(at)}
	if q.Name == "" {
		faults = append(faults, errors.New("queue: Name: empty"))
	}
	if q.Declare == Active {
		faults = append(faults, wire.Name(at+": Name", q.Name))
	}
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
		wire.ShortString(at+": Queue", b.Queue), wire.ShortString(at+": ToExchange", b.ToExchange),
		wire.Table(at+": Arguments", b.Arguments)}
	if b.Exchange == "" {
		faults = append(faults, fmt.Errorf("%s: Exchange: empty, nothing can be bound to the default exchange", at))
	}
	if (b.Queue == "") == (b.ToExchange == "") {
		faults = append(faults, fmt.Errorf("%s: Queue, ToExchange: one of the two must be set", at))
	}
	return errors.Join(faults...)
}

func (d Declare) validate(at string) error {
	if d < Active || d > Skip {
		return fmt.Errorf("%s: Declare: %d is not a mode", at, d)
	}
	return nil
}

// normalize returns a copy of t in which every integer has 64 bits: the driver writes a Go int as 32 (RABBITMQ F17), so
// that a time to live above 24 days would arrive as a negative one.
func normalize(t amqp.Table) amqp.Table {
	if len(t) == 0 {
		return nil
	}
	out := make(amqp.Table, len(t))
	for name, value := range t {
		switch v := reflect.ValueOf(value); {
		case !v.IsValid():
			out[name] = value
		case v.CanInt():
			out[name] = v.Int()
		case v.CanUint() && v.Uint() <= math.MaxInt64:
			out[name] = int64(v.Uint())
		default:
			out[name] = value
		}
	}
	return out
}
