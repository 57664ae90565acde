package reconnect

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// declarations is what has been declared on one session, and what could not be.
type declarations struct {
	session *session
	probe   func(context.Context, Exchange) error // for kinds that may not exist
	turn    chan struct{}                         // one declares at a time; a lock whose wait ends with a context

	mu     sync.Mutex
	done   map[entity]bool
	failed map[entity]failure
	faults atomic.Int32 // len(failed), so that a publish does not take the lock
}

type failure struct {
	item item
	err  error
	at   time.Time
}

func newDeclarations(s *session) *declarations {
	return &declarations{session: s, turn: make(chan struct{}, 1), done: map[entity]bool{}, failed: map[entity]failure{}}
}

// all declares the items, whether or not they were before, and returns what failed. It ends early when the connection is
// lost.
func (d *declarations) all(ctx context.Context, items []item) []error {
	select {
	case d.turn <- struct{}{}:
		defer func() { <-d.turn }()
	case <-ctx.Done():
		return []error{ended(ctx)}
	}
	var faults []error
	for rest := items; len(rest) > 0; {
		n, err := d.some(ctx, rest)
		if err != nil {
			faults = append(faults, err)
		}
		if n == 0 || !d.session.alive() {
			break
		}
		rest = rest[n:]
	}
	return faults
}

// missing declares those of the items that were not yet declared on this session.
func (d *declarations) missing(ctx context.Context, items []item) []error {
	d.mu.Lock()
	var rest []item
	for _, it := range items {
		if !d.done[it.entity] || it.unbind {
			rest = append(rest, it)
		}
	}
	d.mu.Unlock()
	if len(rest) == 0 {
		return nil
	}
	return d.all(ctx, rest)
}

// some declares items on one channel until one is refused, which closes the channel, and returns how many it got through,
// the refused one included.
func (d *declarations) some(ctx context.Context, items []item) (n int, err error) {
	type progress struct {
		n   int
		err error
	}
	result := make(chan progress, 1) // not shared variables: the call may be given up and go on
	err = d.session.onChannel(ctx, func(ch *amqp.Channel) error {
		for i, it := range items {
			if ctx.Err() != nil {
				return ended(ctx)
			}
			if err := d.one(ctx, ch, it); err != nil {
				result <- progress{i + 1, err}
				return nil
			}
		}
		result <- progress{len(items), nil}
		return nil
	})
	if err != nil {
		return 0, err
	}
	p := <-result
	return p.n, p.err
}

// one declares one item and records the outcome, unless it is that the connection was lost.
func (d *declarations) one(ctx context.Context, ch *amqp.Channel, it item) error {
	err := d.session.lossOr(it.declare(ctx, ch, d.probe))
	if err != nil && !d.session.alive() {
		return err
	}
	if err != nil {
		err = it.explain(err)
	}
	d.record(it, err)
	return err
}

func (d *declarations) record(it item, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil {
		d.done[it.entity] = true
		delete(d.failed, it.entity)
	} else {
		delete(d.done, it.entity)
		d.failed[it.entity] = failure{it, err, time.Now()}
	}
	d.faults.Store(int32(len(d.failed)))
}

// recheckAfter is how long the verdict on an entity that could not be declared stands before a publish that names it
// makes us ask again.
const recheckAfter = time.Second

// publishable returns why a message to exchange with key cannot be published: the exchange, or for the default exchange
// the queue, is described in our topology and could not be declared.
func (d *declarations) publishable(ctx context.Context, exchange, key string) error {
	if d.faults.Load() == 0 {
		return nil
	}
	name := exchangeEntity(exchange)
	if exchange == "" {
		name = queueEntity(key)
	}
	d.mu.Lock()
	f, failed := d.failed[name]
	d.mu.Unlock()
	if !failed {
		return nil
	}
	if time.Since(f.at) < recheckAfter {
		return f.err
	}
	return errors.Join(d.all(ctx, []item{f.item})...)
}

// knows reports whether the exchange was declared on this session, so that it need not be asked for.
func (d *declarations) knows(exchange string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.done[exchangeEntity(exchange)]
}

// declare puts the item on the broker. A refusal closes ch.
func (it item) declare(ctx context.Context, ch *amqp.Channel, probe func(context.Context, Exchange) error) error {
	switch {
	case it.exchange != nil && it.exchange.Declare == Active && !it.exchange.builtin():
		return probe(ctx, *it.exchange)
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

func (e Exchange) builtin() bool {
	return slices.Contains([]string{amqp.ExchangeDirect, amqp.ExchangeFanout, amqp.ExchangeTopic, amqp.ExchangeHeaders}, e.Kind)
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

func with(t amqp.Table, name string, value any) amqp.Table {
	out := make(amqp.Table, len(t)+1)
	for k, v := range t {
		out[k] = v
	}
	out[name] = value
	return out
}

// inequivalent finds the argument and its two values in the broker's words, which are all it says them in.
var inequivalent = regexp.MustCompile(`inequivalent arg '([^']*)' for .*: received (.*) but current is (.*)$`)

// quoted finds the value in "the value '5' of type 'long'" and in "'true'".
var quoted = regexp.MustCompile(`^(?:the value )?'(.*?)'(?: of type '.*')?$`)

// explain turns what the broker answered into the error that callers get: a TopologyError for what only a person can
// mend, otherwise the broker's own error with the entity named.
func (it item) explain(err error) error {
	switch amqpCode(err) {
	case amqp.AccessRefused, amqp.PreconditionFailed, amqp.CommandInvalid:
		fault := &TopologyError{Entity: it.entity.String(), Err: err}
		if m := inequivalent.FindStringSubmatch(reason(err)); m != nil {
			fault.Argument, fault.Wanted, fault.Existing = m[1], unquote(m[2]), unquote(m[3])
		}
		return fault
	}
	return fmt.Errorf("reconnect: %s: %w", it.entity, err)
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
		return m[1]
	}
	return value
}

// has reports whether the item is declared on this session; a removed binding never is.
func (d *declarations) has(it item) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.done[it.entity]
}
