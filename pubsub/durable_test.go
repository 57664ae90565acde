package pubsub_test

import (
	"context"
	"errors"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/pubsub"
	"github.com/warrenmq/warren/reconnect"
)

// P31: what is published before the first subscriber starts is received when the topology was declared before; instances of
// one group share the messages, groups get their own.
func TestP31PublisherFirstAndGroups(t *testing.T) {
	const n = 100
	s := newSetup(t)
	p := s.publisher()
	a, b := s.group("a"), s.group("b")
	require.NoError(t, s.conn.Declare(t.Context(), a.Topology()))
	require.NoError(t, s.conn.Declare(t.Context(), b.Topology()))
	publish(t, p, 0, n)

	var a1, a2, b1 inbox
	both := func(in *inbox) pubsub.Handler { // holds on to the first until the other has one, so that both are seen to get some
		return func(ctx context.Context, d amqp.Delivery) error {
			_ = in.handle(ctx, d)
			testenv.Eventually(t, patience, func() bool { return len(a1.all()) > 0 && len(a2.all()) > 0 }, "both instances got something")
			return nil
		}
	}
	s.subscribe(s.conn, a, both(&a1), pubsub.SubscriberConfig{Prefetch: 1})
	s.subscribe(s.dial(reconnect.Config{}), a, both(&a2), pubsub.SubscriberConfig{Prefetch: 1})
	s.subscribe(s.conn, b, b1.handle, pubsub.SubscriberConfig{})
	b1.reaches(t, n)
	require.Equal(t, ids(0, n), b1.all(), "one subscriber alone gets them in order")
	testenv.Eventually(t, patience, func() bool { return len(a1.all())+len(a2.all()) == n }, "the group got all")
	require.ElementsMatch(t, ids(0, n), append(a1.all(), a2.all()...), "each of them once")
}

// Publishing to nobody is a success unless the exchange is mandatory.
func TestNobodySubscribes(t *testing.T) {
	s := newSetup(t)
	publish(t, s.publisher(), 0, 3)

	s.exchange.Mandatory = true
	p := s.publisher()
	var returned *reconnect.ReturnedError
	require.ErrorAs(t, p.Publish(t.Context(), message(1)), &returned)
	require.Equal(t, "1", returned.MessageID)
	var failed reconnect.BatchError
	require.ErrorAs(t, p.PublishBatch(t.Context(), []amqp.Publishing{message(2), message(3)}), &failed)
	require.ErrorAs(t, failed[0], &returned)
	require.ErrorAs(t, failed[1], &returned)

	var in inbox
	s.subscribe(s.conn, s.group("group"), in.handle, pubsub.SubscriberConfig{})
	require.NoError(t, p.PublishJSON(t.Context(), 42))
	in.reaches(t, 1)
}

// What fails ends in the group's dead-letter queue, and holds up nobody; also through an exchange of our own.
func TestFailuresAreDeadLettered(t *testing.T) {
	for name, dlx := range map[string]string{"default exchange": "", "own exchange": testenv.Name(t, "dlx")} {
		t.Run(name, func(t *testing.T) {
			s := newSetup(t)
			sub := s.group("group")
			if sub.DeadLetterExchange = dlx; dlx != "" {
				s.deleteExchange(dlx)
			}
			var in inbox
			s.subscribe(s.conn, sub, func(ctx context.Context, d amqp.Delivery) error {
				_ = in.handle(ctx, d)
				if d.MessageId == "1" {
					return errors.New("no")
				}
				return nil
			}, pubsub.SubscriberConfig{})
			publish(t, s.publisher(), 0, 4)
			in.reaches(t, 4)
			testenv.Eventually(t, patience, func() bool { return s.broker.Queue(t, sub.DeadLetterQueue()).Ready == 1 }, "dead-lettered")
		})
	}
}

// A full queue refuses: the others have the message.
func TestFullGroupRefuses(t *testing.T) {
	s := newSetup(t)
	full, other := s.group("full"), s.group("other")
	full.MaxLength = 1
	require.NoError(t, s.conn.Declare(t.Context(), full.Topology()))
	require.NoError(t, s.conn.Declare(t.Context(), other.Topology()))
	p := s.publisher()
	sent := 0
	testenv.Eventually(t, patience, func() bool {
		err := p.Publish(t.Context(), message(sent))
		sent++
		return errors.Is(err, reconnect.ErrRefused)
	}, "refused")
	testenv.Eventually(t, patience, func() bool { return s.broker.Queue(t, other.Queue).Ready == sent }, "the other has all")
}

// The queue exists with other arguments: both sides say so, naming it, and do not loop.
func TestExistsWithOtherArguments(t *testing.T) {
	s := newSetup(t)
	sub := s.group("group")
	require.NoError(t, s.conn.Declare(t.Context(), sub.Topology()))
	sub.DeliveryLimit = 7
	other := s.dial(reconnect.Config{})
	subscriber, err := pubsub.NewSubscriber(other, sub, new(inbox).handle, pubsub.SubscriberConfig{})
	require.NoError(t, err)
	var conflict *reconnect.TopologyError
	require.ErrorAs(t, subscriber.Run(t.Context()), &conflict)
	require.Contains(t, conflict.Entity, sub.Queue)
	require.Equal(t, "x-delivery-limit", conflict.Argument)

	ch, err := s.broker.Dial(t).Channel()
	require.NoError(t, err)
	name := testenv.Name(t, "kind")
	require.NoError(t, ch.ExchangeDeclare(name, "direct", true, false, false, false, nil))
	defer ch.ExchangeDelete(name, false, false)
	p, err := pubsub.NewPublisher(other, pubsub.Exchange{Name: name}, reconnect.PublisherConfig{})
	require.NoError(t, err)
	require.ErrorAs(t, p.Publish(t.Context(), message(0)), &conflict)
	require.Contains(t, conflict.Entity, name)
}
