package retry

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/apart"
	"github.com/warrenmq/warren/internal/rawamqp"
	"github.com/warrenmq/warren/reconnect"
)

// SkipUnreadable takes the first message that the driver cannot read off queue, which must be the dead-letter queue, or the
// queue that l was made for, if that is a classic one (a quorum queue gets rid of it by its delivery limit). Such a message,
// with headers nested deeper than 32 levels, or that have outgrown the connection's frame since they were published, closes
// the connection of everybody who is sent it, and comes back. It is lost: lost says what it was, as far as can be seen, in
// text that may be printed.
//
// Nothing else is lost. A message that can be read is never taken off, whatever else happens to the queue meanwhile; those
// before it go back to their place. When there is none that cannot be read, that is the error. It needs the same rights as
// looking at the dead letters, and must not be called while the queue is consumed: then somebody else has the message.
func (l *DeadLetters) SkipUnreadable(ctx context.Context, queue string) (lost string, err error) {
	if err := l.skippable(ctx, queue); err != nil {
		return "", l.failed("skip among", err)
	}
	type outcome struct {
		lost string
		err  error
	}
	skipped := make(chan outcome, 1)
	err = notLongAfter(ctx, func() error {
		return l.conn.Supervise(apart.With(ctx, &apart.Wish{Unreadable: func(error) {}}), "skip in "+queue, reconnect.Topology{},
			func(life context.Context, _ *amqp.Channel) error {
				if len(skipped) == 0 {
					lost, err := l.skip(life, queue)
					skipped <- outcome{lost, err}
				}
				return nil
			})
	})
	select {
	case o := <-skipped:
		lost, err = o.lost, o.err
	default:
		if err == nil {
			err = context.Cause(ctx)
		}
	}
	if err != nil {
		return lost, l.failed("skip among", cutShort(ctx, err))
	}
	return lost, nil
}

// skippable makes sure that what is taken from queue can be given back.
func (l *DeadLetters) skippable(ctx context.Context, queue string) error {
	switch queue {
	case deadLetterQueue(l.queue):
		_, err := l.proven(ctx)
		return err
	case l.queue:
		return l.classic(ctx, queue)
	}
	return fmt.Errorf("queue: %q is neither the dead-letter queue nor %q", queue, l.queue)
}

// skip does it on a connection of its own.
func (l *DeadLetters) skip(ctx context.Context, queue string) (lost string, err error) {
	sock, err := apart.Dial(ctx)
	if err != nil {
		return "", err
	}
	conn, err := rawamqp.Open(ctx, sock, l.conn.Config().Name+"/consuming/apart")
	if err != nil {
		return "", err
	}
	s := skipper{conn: conn, queue: queue}
	why, err := s.find(ctx)
	if err == nil && s.found != nil {
		lost = fmt.Sprintf("%v, taken off queue %q; the driver says: %s", s.found, queue, reasonOf(why))
		err = conn.Ack(s.found)
	}
	err = errors.Join(err, s.putBack(ctx))
	if closing := conn.Close(); closing != nil && err == nil {
		err = fmt.Errorf("it is not certain to be gone: %w", closing)
	}
	if err == nil && s.found == nil {
		err = fmt.Errorf("queue %q: every message can be read", queue)
	}
	return lost, err
}

// reasonOf is the driver's word, which holds nothing of the message.
func reasonOf(err error) string {
	var e *amqp.Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return err.Error()
}

// skipper has messages in hand that the driver is not shown.
type skipper struct {
	conn  *rawamqp.Conn
	queue string

	found *rawamqp.Message
	held  []*rawamqp.Message // before it, without their content
	again bool               // the last one taken had been given back before
}

// find takes messages until one cannot be read, and says why.
func (s *skipper) find(ctx context.Context) (why, err error) {
	for {
		m, err := s.conn.Get(s.queue)
		if err != nil || m == nil {
			return nil, err
		}
		s.again = m.Redelivered
		why := rawamqp.Judge(ctx, m)
		var undecided *rawamqp.Undecided
		if errors.As(why, &undecided) {
			return nil, why
		}
		if why != nil {
			s.found = m
			return why, nil
		}
		m.Forget()
		s.held = append(s.held, m)
	}
}

// putBack is as a reader's.
func (s *skipper) putBack(ctx context.Context) error {
	if len(s.held) == 0 {
		return nil
	}
	for s.again {
		m, err := s.conn.Get(s.queue)
		if err != nil {
			return err
		}
		if m == nil {
			break
		}
		s.again = m.Redelivered
		m.Forget()
		s.held = append(s.held, m)
	}
	ready, err := s.conn.Ready(s.queue)
	if err != nil {
		return err
	}
	for i, m := range s.held {
		if err := s.conn.Return(m); err != nil {
			return err
		}
		if (i+1)%pipelined == 0 || i+1 == len(s.held) {
			if err := returned(ctx, ready+i+1, func() (int, error) { return s.conn.Ready(s.queue) }); err != nil {
				return err
			}
		}
	}
	return nil
}
