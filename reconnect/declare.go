package reconnect

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// declarations is what has been declared on one session, and what could not be.
type declarations struct {
	session *session
	risks   *risks
	apart   func(context.Context, item) error // declares on a connection of its own

	turns    *turns // of this session's callers
	creating *turns // of both links

	made func(exchange string) // is told of each that was declared

	mu     sync.Mutex
	done   map[entity]mark
	failed map[entity]failure
	faults atomic.Int32 // len(failed), so that a publish does not take the lock
}

// mark says in which way an entity was declared, or that it was removed.
type mark struct {
	mode    Declare
	removed bool
}

type failure struct {
	item item
	err  error
	at   time.Time
}

func newDeclarations(s *session) *declarations {
	return &declarations{session: s, risks: newRisks(), turns: newTurns(), creating: newTurns(), made: func(string) {},
		done: map[entity]mark{}, failed: map[entity]failure{}}
}

// missing declares those of the items that were not yet declared on this session. Of many workers of one queue, one does.
func (d *declarations) missing(ctx context.Context, items []item) []error {
	rest := d.lacking(items)
	if len(rest) == 0 {
		return nil
	}
	release, err := d.turns.take(ctx, rest[len(rest)-1].entity)
	if err != nil {
		return []error{err}
	}
	defer release()
	return d.all(ctx, d.lacking(items)) // others may have declared the same meanwhile
}

func (d *declarations) lacking(items []item) []item {
	var out []item
	for _, it := range items {
		if !d.has(it) {
			out = append(out, it)
		}
	}
	return out
}

// all declares the items, whether or not they were before, and returns what failed. It ends early when the connection is
// lost.
func (d *declarations) all(ctx context.Context, items []item) []error {
	return d.restore(ctx, items, math.MaxInt64)
}

// restore is all for a new connection: one item that the broker does not answer to must not hold back the others for
// longer than limit.
func (d *declarations) restore(ctx context.Context, items []item, limit time.Duration) []error {
	var faults []error
	for rest := items; len(rest) > 0; {
		n, err := d.some(ctx, rest, limit)
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

// some declares items on one channel until one is refused, which closes the channel, or takes longer than limit.
// It returns how many it got through, that one included.
func (d *declarations) some(ctx context.Context, items []item, limit time.Duration) (n int, err error) {
	type progress struct {
		n   int
		err error
	}
	watched, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	var at atomic.Int32
	watch := time.AfterFunc(limit, func() { giveUp(errNoAnswer) })
	defer watch.Stop()
	result := make(chan progress, 1) // not shared variables: the call may be given up and go on
	err = d.session.onChannel(watched, func(ch *amqp.Channel) error {
		for i, it := range items {
			at.Store(int32(i))
			watch.Reset(limit)
			err := d.one(watched, ch, it)
			if watched.Err() != nil {
				return ended(watched)
			}
			if err != nil {
				result <- progress{i + 1, err}
				return nil
			}
		}
		result <- progress{len(items), nil}
		return nil
	})
	switch {
	case err == nil:
		p := <-result
		return p.n, p.err
	case ctx.Err() == nil && context.Cause(watched) == errNoAnswer:
		it := items[at.Load()]
		err = fmt.Errorf("reconnect: %s: %w within %v", it.entity, errNoAnswer, limit)
		d.record(it, err)
		return int(at.Load()) + 1, err
	}
	return 0, err
}

var errNoAnswer = errors.New("no answer from the broker")

// one declares one item and records the outcome, unless it is that the connection was lost or ctx has ended.
func (d *declarations) one(ctx context.Context, ch *amqp.Channel, it item) error {
	err := d.declare(ctx, ch, it)
	switch {
	case err == nil:
	case !d.session.alive():
		d.risks.note(it, err)
		return err
	case ctx.Err() != nil:
		return err
	default:
		err = it.explain(err)
	}
	d.record(it, err)
	return err
}

// declare puts the item on the broker; what may cost the connection is tried on another one first.
func (d *declarations) declare(ctx context.Context, ch *amqp.Channel, it item) error {
	if d.risks.has(it) {
		if err := d.apart(ctx, it); err != nil {
			return err
		}
		d.risks.clear(it)
	}
	if it.queue != nil && it.queue.Declare == Active {
		// A second declare of a quorum queue is answered while the first still makes it, and messages published after
		// that answer are refused: 12 of 120 on RabbitMQ 3.10.8. So both links of a Conn take turns.
		release, err := d.creating.take(ctx, it.entity)
		if err != nil {
			return err
		}
		defer release()
	}
	return d.session.lossOr(it.declare(ch))
}

func (d *declarations) record(it item, err error) {
	if err == nil && it.entity.kind == "exchange" {
		d.made(it.entity.name)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil {
		d.done[it.entity] = mark{it.mode(), it.unbind}
		delete(d.failed, it.entity)
	} else {
		delete(d.done, it.entity)
		d.failed[it.entity] = failure{it, err, time.Now()}
	}
	d.faults.Store(int32(len(d.failed)))
}

// has reports whether the item was declared on this session, in its mode or a less strict one, or, when it is to be
// removed, was removed.
func (d *declarations) has(it item) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	m, ok := d.done[it.entity]
	return ok && m.removed == it.unbind && m.mode <= it.mode()
}

// mendable returns those of the items that could not be declared for a reason that may pass by itself.
func (d *declarations) mendable(items []item) []item {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []item
	for _, it := range items {
		if f, ok := d.failed[it.entity]; ok && !isPermanent(f.err) {
			out = append(out, it)
		}
	}
	return out
}

// forgive forgets that an entity could not be declared.
func (d *declarations) forgive(e entity) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.failed, e)
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
	if f := d.verdict(name); !f.stale() {
		return f.err
	}
	release, err := d.turns.take(ctx, name)
	if err != nil {
		return err
	}
	defer release()
	f := d.verdict(name)
	if !f.stale() { // another publish has asked meanwhile
		return f.err
	}
	return errors.Join(d.all(ctx, []item{f.item})...)
}

// verdict returns what is known of an entity that could not be declared.
func (d *declarations) verdict(name entity) failure {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failed[name]
}

// stale reports whether it is time to ask again.
func (f failure) stale() bool { return f.err != nil && time.Since(f.at) >= recheckAfter }

// knows reports whether the exchange was declared on this session, so that it need not be asked for.
func (d *declarations) knows(exchange string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.done[exchangeEntity(exchange)]
	return ok
}
