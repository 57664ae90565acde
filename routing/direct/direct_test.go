package direct_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/routing/direct"
)

const last = "end-of-test"

// The article's case: order.created goes to fulfillment and audit, order.cancelled to audit only, order.payment-failed to
// alerts only.
func TestOrders(t *testing.T) {
	s := newSetup(t)
	var fulfillment, audit, alerts inbox
	s.subscribe(s.group("fulfillment", "order.created", last), fulfillment.handle)
	s.subscribe(s.group("audit", "order.created", "order.cancelled", last), audit.handle)
	s.subscribe(s.group("alerts", "order.payment-failed", last), alerts.handle)
	p := s.publisher()
	for _, key := range []string{"order.created", "order.cancelled", "order.payment-failed", "order.created", last} {
		require.NoError(t, p.PublishJSON(t.Context(), key, map[string]int{"id": 1}))
	}
	require.Equal(t, []string{"order.created", "order.created"}, fulfillment.last(t, last))
	require.Equal(t, []string{"order.created", "order.cancelled", "order.created"}, audit.last(t, last))
	require.Equal(t, []string{"order.payment-failed"}, alerts.last(t, last))
}

// Many keys on one queue, several workers, one handler for each key.
func TestManyKeysSeveralWorkers(t *testing.T) {
	const keys, each, workers = 40, 10, 3
	s := newSetup(t)
	mux := direct.Mux{}
	boxes := map[string]*inbox{}
	for i := range keys {
		key := fmt.Sprintf("kind.%02d", i)
		boxes[key] = new(inbox)
		mux[key] = boxes[key].handle
	}
	sub := s.group("all", mux.Keys()...)
	for range workers {
		s.subscribe(sub, mux.Handle)
	}
	var batch []reconnect.Message
	for i := range keys * each {
		batch = append(batch, reconnect.Message{Key: fmt.Sprintf("kind.%02d", i%keys)})
	}
	require.NoError(t, s.publisher().PublishBatch(t.Context(), batch))
	testenv.Eventually(t, patience, func() bool { q := s.broker.Queue(t, sub.Queue); return q.Ready+q.Unacked == 0 }, "all handled")
	for key, box := range boxes {
		require.Equal(t, strings.Split(strings.Repeat(key+",", each)[:each*(len(key)+1)-1], ","), box.all())
	}
	require.Equal(t, workers, s.broker.Queue(t, sub.Queue).Consumers)
}

// P32: a key bound by an earlier version, listed as obsolete, is unbound; again, too, after a reconnect, and without it
// having been there.
func TestP32ObsoleteBindingsAreRemoved(t *testing.T) {
	s := newSetup(t)
	sub := s.group("audit", "old", "both")
	require.NoError(t, s.conn.Declare(t.Context(), sub.Topology()))
	p := s.publisher()
	require.NoError(t, p.Publish(t.Context(), "old", amqp.Publishing{MessageId: "waits"}))

	var in inbox
	sub.Keys, sub.Obsolete = []string{"new", "both"}, []string{"old", "never"}
	stop := s.subscribe(sub, in.handle)
	var returned *reconnect.ReturnedError
	require.ErrorAs(t, p.Publish(t.Context(), "old", amqp.Publishing{}), &returned)
	require.NoError(t, p.Publish(t.Context(), "both", amqp.Publishing{}))
	require.NoError(t, p.Publish(t.Context(), "new", amqp.Publishing{}))
	require.Equal(t, []string{"old", "both"}, in.last(t, "new"), "what came before through the old one is handled")

	s.broker.CutConnections(t, s.name)
	require.NoError(t, p.Publish(t.Context(), "both", amqp.Publishing{}))
	in.last(t, "both")
	require.ErrorAs(t, p.Publish(t.Context(), "old", amqp.Publishing{}), &returned, "a reconnect brought it back")
	require.NoError(t, stop())
	s.subscribe(sub, in.handle)
	require.ErrorAs(t, p.Publish(t.Context(), "old", amqp.Publishing{}), &returned)
}

// A key that nobody wants is told to its publisher, in a batch alone.
func TestUnroutable(t *testing.T) {
	s := newSetup(t)
	var in inbox
	s.subscribe(s.group("orders", "a", "b"), in.handle)
	p := s.publisher()
	var returned *reconnect.ReturnedError
	err := p.Publish(t.Context(), "order.creatd", amqp.Publishing{})
	require.ErrorAs(t, err, &returned)
	require.Equal(t, "order.creatd", returned.Key)
	require.ErrorContains(t, err, fmt.Sprintf(`direct: publish to exchange %q with key "order.creatd": `, s.exchange.Name), "said once")

	var failed reconnect.BatchError
	err = p.PublishBatch(t.Context(), []reconnect.Message{{Key: "a"}, {Key: "c"}, {Key: "a", Exchange: "elsewhere"}, {Key: "b", Exchange: s.exchange.Name}})
	require.ErrorAs(t, err, &failed)
	require.Len(t, failed, 4)
	require.NoError(t, failed[0])
	require.ErrorAs(t, failed[1], &returned)
	require.ErrorContains(t, failed[2], `Exchange: "elsewhere"`)
	require.NoError(t, failed[3])
	require.Equal(t, []string{"a"}, in.last(t, "b"))
	require.NoError(t, p.PublishBatch(t.Context(), nil))
}

// An alternate exchange takes what no binding does; while nothing is behind it, the publisher is told as ever.
func TestAlternateExchange(t *testing.T) {
	s := newSetup(t)
	other := testenv.Name(t, "unclaimed")
	s.exchange.Alternate = other
	var in, rest inbox
	s.subscribe(s.group("orders", "a"), in.handle)
	p := s.publisher()
	var returned *reconnect.ReturnedError
	require.ErrorAs(t, p.Publish(t.Context(), "b", amqp.Publishing{}), &returned, "the alternate exchange does not exist")

	s.exchange = direct.Exchange{Name: other} // the kind is up to whoever collects there
	t.Cleanup(func() {
		ch, err := s.broker.Dial(t).Channel()
		require.NoError(t, err)
		require.NoError(t, ch.ExchangeDelete(other, false, false))
	})
	s.subscribe(s.group("rest", "b"), rest.handle)
	require.NoError(t, p.Publish(t.Context(), "b", amqp.Publishing{}))
	require.Empty(t, rest.last(t, "b"))
	require.ErrorAs(t, p.Publish(t.Context(), "c", amqp.Publishing{}), &returned, "no queue there takes it")
	require.NoError(t, p.Publish(t.Context(), "a", amqp.Publishing{}))
	require.Empty(t, in.last(t, "a"))
}

func TestMux(t *testing.T) {
	failure := errors.New("no")
	mux := direct.Mux{"b": func(context.Context, amqp.Delivery) error { return nil }, "a": func(context.Context, amqp.Delivery) error { return failure }, "nil": nil}
	require.Equal(t, []string{"a", "b", "nil"}, mux.Keys())
	require.NoError(t, mux.Handle(t.Context(), amqp.Delivery{RoutingKey: "b"}))
	require.Equal(t, failure, mux.Handle(t.Context(), amqp.Delivery{RoutingKey: "a"}))
	for _, key := range []string{"", "A", "a.b", "nil"} {
		err := mux.Handle(t.Context(), amqp.Delivery{RoutingKey: key, MessageId: "m-1"})
		require.ErrorContains(t, err, "m-1")
		var permanent interface{ Permanent() bool }
		require.ErrorAs(t, err, &permanent)
		require.True(t, permanent.Permanent())
	}
}

// A message whose key is bound and has no handler ends in the dead-letter queue, and is seen there.
func TestKeyWithoutHandler(t *testing.T) {
	s := newSetup(t)
	var in inbox
	mux := direct.Mux{"a": in.handle}
	sub := s.group("orders", append(mux.Keys(), "forgotten")...)
	s.subscribe(sub, mux.Handle)
	p := s.publisher()
	require.NoError(t, p.Publish(t.Context(), "forgotten", amqp.Publishing{}))
	require.NoError(t, p.Publish(t.Context(), "a", amqp.Publishing{}))
	in.last(t, "a")
	testenv.Eventually(t, patience, func() bool { return s.broker.Queue(t, sub.DeadLetterQueue()).Ready == 1 }, "dead-lettered")
}

// A live subscription has many keys, too, each bound again under the fresh name.
func TestLiveKeys(t *testing.T) {
	s := newSetup(t)
	var in inbox
	s.subscribe(direct.Subscription{Exchange: s.exchange, Keys: []string{"a", "b"}}, in.handle)
	p := s.publisher()
	for _, key := range []string{"a", "b"} {
		require.NoError(t, p.Publish(t.Context(), key, amqp.Publishing{}))
	}
	in.last(t, "b")
	before := s.ports("/consuming")
	require.NotEmpty(t, before)
	s.broker.CutConnections(t, s.name+"/consuming")
	// The old queue goes with its connection, a moment later: what is published before that is lost with it.
	testenv.Eventually(t, patience, func() bool {
		return !slices.ContainsFunc(s.ports("/consuming"), func(port int) bool { return slices.Contains(before, port) })
	}, "the connection is gone")
	var returned *reconnect.ReturnedError
	for _, key := range []string{"b", "a"} {
		testenv.Eventually(t, patience, func() bool { return !errors.As(p.Publish(t.Context(), key, amqp.Publishing{}), &returned) }, "%s bound again", key)
	}
	in.last(t, "a")
	require.ErrorAs(t, p.Publish(t.Context(), "c", amqp.Publishing{}), &returned)
}

// All faults are reported at once, each by its field.
func TestFaults(t *testing.T) {
	s := newSetup(t)
	_, err := direct.NewSubscriber(s.conn, direct.Subscription{
		Exchange: direct.Exchange{Name: "amq.orders", Alternate: "amq.orders", Declare: 9}, Queue: strings.Repeat("q", 201), Keys: []string{"", strings.Repeat("x", 256)},
		DeliveryLimit: -1, TTL: 1, Declare: -1, DeadLetterExchange: "amq.x",
		Arguments: amqp.Table{"x-max-length": 1, "x-expires": 1, "x-queue-type": "classic", "x-y": []string{"z"}},
	}, nil, direct.SubscriberConfig{Concurrency: -1})
	require.Error(t, err)
	for _, part := range []string{"direct: subscriber of queue", "Exchange.Alternate: is the exchange itself", "Exchange.Declare: 9", "Queue: 201 bytes",
		`Keys: number 1, "": empty`, "Keys: number 2", "DeliveryLimit: -1", "TTL: 1ns", "Declare: -1", "DeadLetterExchange:", "Arguments: x-max-length is set by MaxLength",
		"Arguments: x-expires", "Arguments: x-queue-type", "Arguments: ", "Handler: missing"} {
		require.ErrorContains(t, err, part)
	}
	_, err = direct.NewPublisher(s.conn, direct.Exchange{}, reconnect.PublisherConfig{Window: -1})
	require.ErrorContains(t, err, "Exchange.Name: empty")
	require.ErrorContains(t, err, "Window: -1")
	_, err = direct.NewPublisher(nil, s.exchange, reconnect.PublisherConfig{})
	require.ErrorContains(t, err, "conn: nil")
	_, err = direct.NewLiveSubscriber(nil, direct.Subscription{}, nil, direct.SubscriberConfig{})
	require.ErrorContains(t, err, "conn: nil")
}
