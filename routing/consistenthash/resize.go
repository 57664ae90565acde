package consistenthash

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/wire"
	"github.com/warrenmq/warren/reconnect"
)

// Resize changes the number of p's partitions to count, together with the messages that wait in them: each ends in the partition in which
// messages of its key will be from now on, those of one key in their order. All publishers and consumers must be stopped, and their Conns
// closed: a Conn declares what it knows of again at its next reconnect, the removed partitions included. It refuses while it sees a
// consumer, publishers it cannot see. From its beginning to its end, also if it fails in between, whoever comes with either number gets
// ErrCountChanged.
//
// It returns how many messages this call has put into the partitions. It blocks until all is done, through reconnects, or until ctx ends.
// After an error it may, and must, be called again with the same arguments, and goes on where it was; then messages that were on their
// way may be there twice, never out of order. A call when all is done does nothing, and calls at the same time wait for each other. A
// message's expiration does not survive.
//
// The messages go through one further queue, "<Name>.resizing", which is gone afterwards, as is "<Name>.resizing.lock", an exclusive one.
// The user needs the rights to configure, write and read all queues of p, these two included, and to write to its exchange and to
// amq.default. A message of another program must have the header "warren-key" (see the package comment): without it the name of its old
// queue is taken for its key.
func Resize(ctx context.Context, conn *reconnect.Conn, p Partitions, count int) (moved int, err error) {
	if conn == nil {
		return 0, errors.New("consistenthash: resize: conn: nil")
	}
	to := p
	to.Count = count
	faults := []error{p.validate()}
	if count < 1 || count > maxCount {
		faults = append(faults, fmt.Errorf("count: %d, must be between 1 and %d", count, maxCount))
	}
	if p.Declare != reconnect.Active || conn.Config().Declare != reconnect.Active {
		faults = append(faults, errors.New("Declare: must be Active, since queues are made and deleted"))
	}
	err = errors.Join(faults...)
	if err == nil {
		r := &resize{conn: conn, from: p, to: to}
		err = r.alone(ctx, func(ctx context.Context) error {
			n, err := r.run(ctx)
			moved += n
			return err
		})
	}
	if err != nil {
		return moved, fmt.Errorf("consistenthash: resize partitions %q to %d: %w", p.Name, count, err)
	}
	return moved, nil
}

// A resize goes through these phases; which of them it is in stands in the guard, as the number of partitions does before and after. No
// message of a key is put into the new partitions before all of them have left the old ones: so their order holds whenever it is
// interrupted.
const (
	draining = 1 + iota // from the old partitions to the queue in between
	filling             // from there to the new partitions
)

// phaseValue is what stands in the guard during a phase: far above every count.
func phaseValue(phase, from, to int) int64 {
	return int64(phase)*100_000_000 + int64(from)*10_000 + int64(to)
}

func parsePhase(v int64) (phase, from, to int, ok bool) {
	phase, from, to = int(v/100_000_000), int(v/10_000%10_000), int(v%10_000)
	return phase, from, to, phase == draining || phase == filling
}

type resize struct {
	conn     *reconnect.Conn
	from, to Partitions
	pub      *reconnect.Publisher
}

func (r *resize) run(ctx context.Context) (moved int, err error) {
	r.conn.Forget(r.from.Topology())
	if r.pub, err = r.conn.NewPublisher(reconnect.PublisherConfig{Shared: true}); err != nil {
		return 0, err
	}
	at, err := r.position(ctx)
	if err != nil {
		return 0, err
	}
	if at == r.value(0) && r.from.Count != r.to.Count {
		if err := r.begin(ctx); err != nil {
			return 0, err
		}
		at = r.value(draining)
	}
	if at == r.value(draining) {
		if err := r.drain(ctx); err != nil {
			return 0, err
		}
		at = r.value(filling)
	}
	if at == r.value(filling) {
		if moved, err = r.fill(ctx); err != nil {
			return moved, err
		}
	}
	if err := r.onChannel(ctx, func(ch *amqp.Channel) error {
		_, err := ch.QueueDelete(r.between(), false, false, false) // empty; and no error when it is not there
		return err
	}); err != nil {
		return moved, err
	}
	return moved, r.conn.Declare(ctx, r.to.Topology())
}

// value is what stands in the guard: in a phase, before all (0) or after all (-1).
func (r *resize) value(phase int) int64 {
	switch phase {
	case 0:
		return int64(r.from.Count)
	case -1:
		return int64(r.to.Count)
	}
	return phaseValue(phase, r.from.Count, r.to.Count)
}

// between is the queue in between.
func (r *resize) between() string { return r.from.Name + ".resizing" }

func (r *resize) betweenTopology() reconnect.Topology {
	return reconnect.Topology{Queues: []reconnect.Queue{{Name: r.between(), Arguments: amqp.Table{"x-single-active-consumer": true,
		"x-delivery-limit": int64(dlqDeliveryLimit), "x-overflow": amqp.QueueOverflowRejectPublish}}}}
}

// position finds out what stands in the guard. Without one, an earlier call ended between its deletion and its new declaration: the
// queue in between, which lives from the beginning of draining to the end, tells which of them.
func (r *resize) position(ctx context.Context) (int64, error) {
	exists, err := r.exists(ctx, r.from.guard())
	if err != nil {
		return 0, err
	}
	if !exists {
		under, err := r.exists(ctx, r.between())
		if err != nil {
			return 0, err
		}
		phase := draining
		if under {
			phase = filling
		}
		return r.value(phase), r.declareGuard(ctx, r.value(phase))
	}
	for _, phase := range []int{0, draining, filling, -1} {
		err := r.declareGuard(ctx, r.value(phase))
		var refused *amqp.Error
		if err == nil {
			return r.value(phase), nil
		}
		if !errors.As(err, &refused) || refused.Code != amqp.PreconditionFailed {
			return 0, err
		}
	}
	return 0, r.from.explain(r.conn.Declare(ctx, r.from.guardTopology()))
}

// begin makes sure that the partitions are what they are described as, which would otherwise come out half-way, and that nobody
// consumes, and locks everybody out.
func (r *resize) begin(ctx context.Context) error {
	defer r.conn.Forget(r.from.Topology())
	for _, step := range r.from.steps()[1:] {
		if err := r.conn.Declare(ctx, step); err != nil {
			return r.from.explain(err)
		}
	}
	for i := range r.from.Count {
		queue, err := r.conn.Inspect(ctx, r.from.Queue(i))
		if err != nil {
			return err
		}
		if queue.Consumers > 0 {
			return fmt.Errorf("queue %q has a consumer: stop all consumers and publishers first", r.from.Queue(i))
		}
	}
	return r.setGuard(ctx, r.value(draining))
}

func (r *resize) drain(ctx context.Context) error {
	if err := r.conn.Declare(ctx, r.betweenTopology()); err != nil {
		return err
	}
	defer r.conn.Forget(r.betweenTopology())
	for i := range r.from.Count {
		if _, err := r.move(ctx, r.from.Queue(i), r.toBetween); err != nil {
			return err
		}
	}
	return r.setGuard(ctx, r.value(filling))
}

func (r *resize) fill(ctx context.Context) (moved int, err error) {
	// The last one first: with the plugin, anything else would move keys a second time.
	for i := r.from.Count - 1; i >= r.to.Count; i-- {
		if err := r.remove(ctx, r.from.Queue(i)); err != nil {
			return 0, err
		}
	}
	for _, step := range r.to.steps()[1:] {
		if err := r.conn.Declare(ctx, step); err != nil {
			return 0, r.to.explain(err)
		}
	}
	if moved, err = r.move(ctx, r.between(), r.toPartition); err != nil {
		return moved, err
	}
	return moved, r.setGuard(ctx, r.value(-1))
}

// remove deletes the queue of a partition that is no more. It is empty, unless publishers were not stopped.
func (r *resize) remove(ctx context.Context, name string) error {
	if _, err := r.move(ctx, name, r.toBetween); err != nil {
		return err
	}
	return r.onChannel(ctx, func(ch *amqp.Channel) error {
		_, err := ch.QueueDelete(name, false, false, false)
		return err
	})
}

// toBetween addresses a message to the queue in between, where its routing key is lost.
func (r *resize) toBetween(d amqp.Delivery) reconnect.Message {
	msg := wire.Copy(d)
	if msg.Headers == nil {
		msg.Headers = amqp.Table{}
	}
	msg.Headers[keyHeader] = keyOf(d)
	return reconnect.Message{Key: r.between(), Publishing: msg}
}

func (r *resize) toPartition(d amqp.Delivery) reconnect.Message {
	key := keyOf(d)
	m := reconnect.Message{Exchange: r.to.Name, Key: key, Publishing: wire.Copy(d)}
	if !r.to.Plugin {
		m.Key = r.to.Queue(r.to.Of(key))
	}
	return m
}

// setGuard replaces the guard by one with another value.
func (r *resize) setGuard(ctx context.Context, value int64) error {
	err := r.onChannel(ctx, func(ch *amqp.Channel) error {
		_, err := ch.QueueDelete(r.from.guard(), true, false, false)
		return err
	})
	var refused *amqp.Error
	if errors.As(err, &refused) && refused.Code == amqp.PreconditionFailed {
		return fmt.Errorf("queue %q has a consumer: stop all consumers and publishers first: %w", r.from.guard(), err)
	}
	if err != nil {
		return err
	}
	return r.declareGuard(ctx, value)
}

func (r *resize) declareGuard(ctx context.Context, value int64) error {
	return r.onChannel(ctx, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(r.from.guard(), true, false, false, false,
			amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeClassic, argMaxCount: value})
		return err
	})
}

func (r *resize) exists(ctx context.Context, queue string) (bool, error) {
	_, err := r.conn.Inspect(ctx, queue)
	if isMissing(err) {
		return false, nil
	}
	return err == nil, err
}

func isMissing(err error) bool {
	var e *amqp.Error
	return errors.As(err, &e) && e.Code == amqp.NotFound
}

// onChannel runs f on a channel of its own, which a refusal closes.
func (r *resize) onChannel(ctx context.Context, f func(*amqp.Channel) error) error {
	ch, err := r.conn.Channel(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = ch.Close() }()
	return f(ch)
}
