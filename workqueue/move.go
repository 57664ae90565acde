package workqueue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/backoff"
	"github.com/warrenmq/warren/internal/prefix"
	"github.com/warrenmq/warren/reconnect"
)

// Move takes all messages of the queue from to the queue to, which it declares: another type or other arguments, under the
// same name or another. from is described as its producers and workers have done so far; with from.Declare Passive or Skip
// only its type has to be right. It returns how many messages this call has put into to.
//
// Under another name the services go on: let the workers of to run, send producers there, then call Move; workers of from
// may run on, too, and what they have not settled when Move returns stays theirs. from is not deleted: an
// operator does that, when nothing publishes to it any more and nobody holds a message of it. While producers still fill it,
// Move ends when it finds it empty, or with ctx. Its dead-letter queue is not touched.
//
// Under the same name the queue is deleted and made again, so all who use it must have ended before: a message that a worker
// holds would be gone with the queue if it then failed, and what is published while a broker deletes a queue may be confirmed
// and gone. Move sees what it can of that: it refuses while there is a consumer, and deletes nothing before no message has come for two
// seconds; as long as some do, it goes on emptying. Meanwhile the messages are in the queue "<name>.moving", which is gone
// afterwards. Begin producers and workers again with the new description; with the old one they get a *reconnect.TopologyError.
//
// It blocks until all is done, through reconnects and while a full queue refuses, or until ctx ends. After an error, a crash,
// or the end of ctx it may, and under the same name must, be called again with the same arguments, and goes on where it was;
// messages that were on their way may then be there twice. A call when all is done does nothing. Not two at once. Messages
// keep their order if nobody else publishes or consumes meanwhile. Their expiration and user id do not survive, and up to
// RabbitMQ 4.2 each loss of the connection counts as a return, to from's DeliveryLimit, of the 200 messages in hand. A message that
// may not be sent (a body above MaxBody, headers that are too large or too deep) is an error that names it; it stays where it is,
// and has to be taken out.
//
// The user needs the rights to declare to, to configure and read from and "<name>.moving", and to write to amq.default.
func Move(ctx context.Context, conn *reconnect.Conn, from, to Queue) (moved int, err error) {
	if conn == nil {
		return 0, errors.New("workqueue: move: conn: nil")
	}
	m := &mover{conn: conn, from: from, to: to}
	if err = m.validate(); err == nil {
		moved, err = m.run(ctx)
	}
	if err != nil {
		return moved, prefix.Wrap(fmt.Sprintf("workqueue: move queue %q to %q", from.Name, to.Name), err)
	}
	return moved, nil
}

// mover is one call of Move.
type mover struct {
	conn     *reconnect.Conn
	from, to Queue
	pub      *reconnect.Publisher
}

func (m *mover) validate() error {
	faults := []error{m.from.validate(), m.to.validate()}
	if m.to.Declare != reconnect.Active || m.conn.Config().Declare != reconnect.Active {
		faults = append(faults, errors.New("Declare: must be Active, since queues are made and deleted"))
	}
	return errors.Join(faults...)
}

func (m *mover) run(ctx context.Context) (moved int, err error) {
	m.conn.Forget(m.from.Topology()) // else a reconnect would bring it back
	m.pub, err = m.conn.NewPublisher(reconnect.PublisherConfig{Shared: true, Timeout: -1})
	if err != nil {
		return 0, err
	}
	if m.from.Name != m.to.Name {
		if _, err := m.conn.Inspect(ctx, m.from.Name); err != nil {
			return 0, err
		}
		if err := m.conn.Declare(ctx, m.to.Topology()); err != nil {
			return 0, err
		}
		return m.drain(ctx, m.from.Name, m.to.Name)
	}
	return m.replace(ctx)
}

// between holds the messages while the queue is made again. It is nobody else's, and what is returned to it counts for
// nothing.
func (m *mover) between() reconnect.Queue {
	return reconnect.Queue{Name: m.to.Name + ".moving", Type: amqp.QueueTypeQuorum,
		Arguments: amqp.Table{argDeliveryLimit: int64(dlqDeliveryLimit), argOverflow: amqp.QueueOverflowRejectPublish}}
}

// replace moves to the same name. What to do is seen from what is on the broker alone, so that it can begin anywhere: as long as
// the queue is not as it should be, it is emptied and deleted; then comes back what is in between.
func (m *mover) replace(ctx context.Context) (moved int, err error) {
	topology := m.to.Topology()
	last := len(topology.Queues) - 1
	target := topology.Queues[last]
	topology.Queues = topology.Queues[:last] // what it needs
	if err := m.conn.Declare(ctx, topology); err != nil {
		return 0, err
	}
	for {
		err := m.declare(ctx, target)
		if err == nil {
			break
		}
		if !isRefused(err, amqp.PreconditionFailed) {
			return 0, err
		}
		if err := m.remove(ctx, err); err != nil {
			return 0, err
		}
	}
	between := m.between().Name
	err = m.deleteEmpty(ctx, between, false, briefly, func() error {
		more, err := m.drain(ctx, between, target.Name)
		moved += more
		return err
	})
	if err != nil {
		return moved, err
	}
	return moved, m.conn.Declare(ctx, m.to.Topology())
}

// remove empties the old queue into the one in between, and deletes it. differs is how it is not as it should be.
func (m *mover) remove(ctx context.Context, differs error) error {
	if m.from.Declare == reconnect.Active {
		queues := m.from.Topology().Queues
		if err := m.declare(ctx, queues[len(queues)-1]); err != nil {
			return fmt.Errorf("the queue is neither as from nor as to: %w; %w", err, differs)
		}
	}
	name, between := m.from.Name, m.between()
	if _, err := m.unused(ctx, name); err != nil {
		return err // before anything is changed
	}
	if err := m.declare(ctx, between); err != nil {
		return err
	}
	return m.deleteEmpty(ctx, name, m.from.classic(), quiet, func() error {
		_, err := m.drain(ctx, name, between.Name)
		return err
	})
}

// quiet is how long a queue must have been empty before it is deleted; briefly is enough for one to which nobody else publishes. What is published in the very moment of that, the broker
// confirms and drops, of classic queues too, and although it is asked to delete only an empty one: on RabbitMQ 3.10.8 and
// 4.0.5 hundreds of 1,500 messages that were published at the same time.
const (
	quiet   = 2 * time.Second
	briefly = 500 * time.Millisecond
)

// deleteEmpty empties a queue and deletes it once it has been empty and unused for a while. The broker looks at that again for a
// classic queue; of others it would close the connection. A queue that is not there is deleted.
func (m *mover) deleteEmpty(ctx context.Context, name string, classic bool, pause time.Duration, empty func() error) error {
	for {
		exists, err := m.unused(ctx, name)
		if err != nil || !exists {
			return err
		}
		if err := empty(); err != nil {
			return err
		}
		if still, err := m.stillEmpty(ctx, name, pause); err != nil {
			return err
		} else if !still {
			continue
		}
		lost := 0
		err = m.onChannel(ctx, func(ch *amqp.Channel) error {
			lost, err = ch.QueueDelete(name, classic, classic, false)
			return err
		})
		switch {
		case isRefused(err, amqp.PreconditionFailed): // it is in use again, or filled again
		case err == nil && lost > 0:
			return fmt.Errorf("%d messages that came while queue %q was deleted are lost: producers must have ended before", lost, name)
		default:
			return err
		}
	}
}

// stillEmpty watches a queue until it has been empty and unused for as long as pause.
func (m *mover) stillEmpty(ctx context.Context, name string, pause time.Duration) (bool, error) {
	for since := time.Now(); time.Since(since) < pause; {
		q, err := m.conn.Inspect(ctx, name)
		if err != nil || q.Messages > 0 || q.Consumers > 0 {
			return false, unlessMissing(err)
		}
		if err := backoff.Sleep(ctx, pause/10); err != nil {
			return false, err
		}
	}
	return true, nil
}

// unused waits until a queue has no consumer: that of an earlier call that was cut off may be there until the broker notices,
// in up to three heartbeats. It reports whether there is such a queue.
func (m *mover) unused(ctx context.Context, name string) (exists bool, err error) {
	deadline := time.Now().Add(3*m.conn.Config().Heartbeat + time.Second)
	for {
		q, err := m.conn.Inspect(ctx, name)
		if err != nil || q.Consumers == 0 {
			return err == nil, unlessMissing(err)
		}
		if time.Now().After(deadline) {
			return true, fmt.Errorf("queue %q has %d consumers: end its workers first", name, q.Consumers)
		}
		if err := backoff.Sleep(ctx, 50*time.Millisecond); err != nil {
			return true, err
		}
	}
}

// declare declares a queue that the Conn must not remember.
func (m *mover) declare(ctx context.Context, q reconnect.Queue) error {
	args := maps.Clone(q.Arguments)
	args[amqp.QueueTypeArg] = q.Type
	if q.Type == "" {
		args[amqp.QueueTypeArg] = amqp.QueueTypeQuorum
	}
	return m.onChannel(ctx, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(q.Name, true, false, false, false, args)
		return err
	})
}

// onChannel runs f on a channel of its own, which a refusal closes, and again when that was lost for another reason.
func (m *mover) onChannel(ctx context.Context, f func(*amqp.Channel) error) error {
	for {
		ch, err := m.conn.Channel(ctx)
		if err != nil {
			return err
		}
		err = f(ch)
		_ = ch.Close()
		var lost *amqp.Error
		if !errors.As(err, &lost) || isAnswer(lost.Code) {
			return err
		}
		if err := backoff.Sleep(ctx, drainAgain); err != nil {
			return err
		}
	}
}

// isAnswer reports whether a code tells of what was asked, and not of the connection.
func isAnswer(code int) bool {
	switch code {
	case amqp.AccessRefused, amqp.NotFound, amqp.ResourceLocked, amqp.PreconditionFailed, amqp.NotAllowed, amqp.NotImplemented:
		return true
	}
	return false
}

func isRefused(err error, code int) bool {
	var refused *amqp.Error
	return errors.As(err, &refused) && refused.Code == code
}

func unlessMissing(err error) error {
	if isRefused(err, amqp.NotFound) {
		return nil
	}
	return err
}
