package reconnect

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/prefix"
)

// Verify compares t with what is on the broker, and changes nothing. It returns nil when they agree, otherwise joined
// *TopologyErrors, one for each difference: an entity that is missing (wrapping the *amqp.Error with code 404), an argument
// or property whose existing value is another one, the right to look that is missing (403); and one for each part of t that
// RabbitMQ 4.3 refuses or misreads, whatever this broker says, so that an upgrade is no surprise. Any other error among
// them says that something could not be found out.
//
// Of what is Passive only what t describes is compared, a type and arguments that are given, and only where the user may
// configure it; what is Skip, and exclusive queues, which come and go with their connection, are not looked at. Bindings
// and policies cannot be seen over AMQP and are not compared.
//
// The user needs the right to configure each of what is compared, and no other.
//
// It asks by declaring again what is there already, together with an argument that would keep a queue from being made. There
// is none for an exchange: one that somebody deletes in the very moment between two questions would be made anew. It blocks
// until the broker has answered, through losses of the link, or until ctx ends.
func (c *Conn) Verify(ctx context.Context, t Topology) error {
	if !c.calls.enter() {
		return ErrClosed
	}
	defer c.calls.leave()
	items, err := t.items(c.cfg.Declare)
	if err != nil {
		return fmt.Errorf("reconnect: topology: %w", err)
	}
	faults := t.lint(c.cfg.Declare)
	for _, it := range items {
		if it.binding != nil || it.exclusive || it.mode() == Skip {
			continue
		}
		v := newVerification(c, it, t.givesType(it))
		if err := v.run(ctx); err != nil {
			v.faults = append(v.faults, prefix.Wrap("reconnect: verify "+it.entity.String(), err))
		}
		faults = append(faults, v.faults...)
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(faults...)
}

// givesType reports whether t itself says what type an entity has.
func (t Topology) givesType(it item) bool {
	if it.exchange != nil {
		return it.exchange.Kind != ""
	}
	return slices.ContainsFunc(t.Queues, func(q Queue) bool { return q.Name == it.queue.Name && q.Type != "" })
}

// verification compares one exchange or queue.
type verification struct {
	conn   *Conn
	item   item
	typed  bool // its type is compared
	want   declared
	risky  bool            // the broker may not know the type of exchange, and end the connection over it
	guards []string        // arguments that are nothing to what exists, and for which a missing queue would not be made
	seen   map[string]bool // arguments that differ
	faults []error
}

func newVerification(c *Conn, it item, typed bool) *verification {
	v := &verification{conn: c, item: it, typed: typed || it.mode() == Active, seen: map[string]bool{}}
	if q := it.queue; q != nil {
		v.want = declared{queue: true, name: q.Name, durable: true, args: with(q.Arguments, amqp.QueueTypeArg, q.Type)}
		if !v.typed {
			delete(v.want.args, amqp.QueueTypeArg)
		}
		v.guard()
		return v
	}
	e := it.exchange
	v.risky = !builtin(e.Kind)
	v.want = declared{name: e.Name, kind: e.Kind, durable: true, internal: e.Internal, args: amqp.Table{}}
	maps.Copy(v.want.args, e.Arguments)
	if e.Alternate != "" {
		v.want.args[alternateExchange] = e.Alternate
	}
	return v
}

// guard chooses the guards for the type of queue that is asked for: an argument of another type is refused when a queue is
// made (406), and not compared when there is one. Without a type, none of them serves for all, so there are both.
func (v *verification) guard() {
	kind, _ := v.want.args[amqp.QueueTypeArg].(string)
	v.guards = nil
	for name, of := range map[string]string{"x-max-priority": amqp.QueueTypeClassic, "x-delivery-limit": amqp.QueueTypeQuorum} {
		if _, own := v.want.args[name]; !own && of != kind {
			v.guards = append(v.guards, name)
		}
	}
}

// maxQuestions bounds the questions about one entity: the broker names one difference at a time.
const maxQuestions = 40

// run notes the differences; it returns why they could not be found out.
func (v *verification) run(ctx context.Context) error {
	if err := v.ask(ctx, v.look); err != nil {
		return v.answered(ctx, err)
	}
	if v.passive() && !v.typed && (len(v.want.args) == 0 || !v.want.queue) {
		return nil // nothing is said of it; an exchange is nothing without its kind
	}
	for range maxQuestions {
		err := v.question(ctx)
		if err == nil || v.passive() && amqpCode(err) == amqp.AccessRefused {
			return nil // it agrees, or is not ours to know
		}
		again, err := v.weigh(ctx, err)
		if !again || err != nil {
			return err
		}
	}
	return nil
}

func (v *verification) passive() bool { return v.item.mode() == Passive }

// errRest says that what exists cannot be declared as it is, to go on from there: it is another connection's, or the broker's
// words are cut off.
var errRest = errors.New("whether more is different cannot be found out")

// weigh judges the refusal of a comparison. again says that there may be more to find out.
func (v *verification) weigh(ctx context.Context, refusal error) (again bool, err error) {
	d, is := differenceIn(refusal)
	if d.existing == notTold {
		d.wanted = v.item.described(d.argument)
	}
	switch at := slices.Index(v.guards, d.argument); {
	case is && at >= 0: // it is of a type that has this argument
		v.guards = slices.Delete(v.guards, at, at+1)
		return true, nil
	case is && !v.seen[d.argument]:
		v.seen[d.argument] = true
		if v.matters(d) {
			v.faults = append(v.faults, v.item.explain(refusal))
		}
		if !v.want.adopt(d) {
			return false, errRest
		}
		if d.argument == amqp.QueueTypeArg {
			v.guard() // of another type
		}
		return true, nil
	case is:
		return false, errRest
	case amqpCode(refusal) == amqp.PreconditionFailed && v.namesGuard(refusal):
		// It is gone, or this broker looks at the arguments before it compares them.
		if err := v.ask(ctx, v.look); err != nil {
			return false, v.answered(ctx, err)
		}
		v.guards = nil
		return true, nil
	}
	return false, v.answered(ctx, refusal)
}

func (v *verification) namesGuard(refusal error) bool {
	return slices.ContainsFunc(v.guards, func(guard string) bool { return strings.Contains(reason(refusal), guard) })
}

// matters reports whether a difference is one: of what is passive, only what is described counts.
func (v *verification) matters(d difference) bool {
	switch {
	case !v.passive():
		return true
	case d.argument == amqp.QueueTypeArg || d.argument == "type":
		return v.typed
	}
	return d.wanted != noValue && d.argument != "durable" && d.argument != "auto_delete"
}

// answered notes what the broker answered, or returns it when it says nothing of the entity, as a refused login does.
func (v *verification) answered(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	var answer *amqp.Error
	if code := amqpCode(err); errors.As(err, &answer) && (code == amqp.NotFound || code == amqp.ResourceLocked) {
		v.faults = append(v.faults, &TopologyError{Entity: v.item.entity.String(), Err: answer})
		return nil
	}
	if fault := v.item.explain(err); isPermanent(fault) {
		v.faults = append(v.faults, fault)
		return nil
	}
	return err
}

// question compares. A type of exchange that the broker may not know is tried on a connection of its own first: it exists, though
// not with this type for sure.
func (v *verification) question(ctx context.Context) error {
	if !v.risky {
		return v.ask(ctx, v.compare)
	}
	v.risky = false
	s, err := v.conn.readingLink().session(ctx, false)
	if err != nil {
		return err
	}
	e := *v.item.exchange
	e.Declare = Active
	return s.declared.apart(ctx, item{entity: v.item.entity, exchange: &e})
}

// ask asks the broker on a throw-away channel, again when the connection is lost meanwhile.
func (v *verification) ask(ctx context.Context, question func(*amqp.Channel) error) error {
	for {
		s, err := v.conn.readingLink().session(ctx, false)
		if err != nil {
			return err
		}
		err = s.onChannel(ctx, question)
		if err == nil || ctx.Err() != nil || s.alive() {
			return err
		}
	}
}

// look asks whether it is there.
func (v *verification) look(ch *amqp.Channel) error {
	if v.want.queue {
		_, err := ch.QueueDeclarePassive(v.want.name, true, false, false, false, nil)
		return err
	}
	return ch.ExchangeDeclarePassive(v.want.name, amqp.ExchangeDirect, true, false, false, false, nil)
}

// compare declares what is there, as it is described.
func (v *verification) compare(ch *amqp.Channel) error { return v.want.compare(ch, v.guards) }
