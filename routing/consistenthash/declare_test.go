package consistenthash_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/routing/consistenthash"
)

func contains(s, part string) bool { return strings.Contains(s, part) }

func ignore(context.Context, amqp.Delivery) error { return nil }

// Who comes with another number is told both, and leaves nothing behind.
func TestCountChanged(t *testing.T) {
	t.Parallel()
	s := newSetup(t, consistenthash.Partitions{Count: 4})
	s.publish(keys(8), 0, 1)
	for _, count := range []int{3, 6} {
		p := s.partitions
		p.Count = count
		other := s.dial("other")
		pub, err := consistenthash.NewPublisher(other, p, reconnect.PublisherConfig{})
		require.NoError(t, err)
		batchErr := pub.PublishBatch(t.Context(), []reconnect.Message{message("k", 0)})
		c, err := consistenthash.NewConsumer(other, p, ignore, consistenthash.ConsumerConfig{})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for _, err := range []error{pub.Publish(t.Context(), "k", amqp.Publishing{}), batchErr, c.Run(ctx)} {
			require.ErrorIs(t, err, consistenthash.ErrCountChanged)
			require.ErrorContains(t, err, fmt.Sprintf("wanted %d partitions, but the broker has 4", count))
			var fault *reconnect.TopologyError
			require.ErrorAs(t, err, &fault)
			var p interface{ Permanent() bool }
			require.ErrorAs(t, err, &p)
			require.True(t, p.Permanent())
		}
	}
	require.False(t, s.broker.Queue(t, s.partitions.Queue(4)).Exists)

	// Also within one Conn, before the broker is asked.
	p := s.partitions
	p.Count = 5
	pub, err := consistenthash.NewPublisher(s.conn, p, reconnect.PublisherConfig{})
	require.NoError(t, err)
	require.ErrorIs(t, pub.Publish(t.Context(), "k", amqp.Publishing{}), consistenthash.ErrCountChanged)
}

// A consumer that runs while the number changes under it ends, as soon as it connects anew.
func TestRunEndsWhenTheCountChanges(t *testing.T) {
	t.Parallel()
	s := newSetup(t, consistenthash.Partitions{Count: 2})
	c := s.consumer(s.conn, ignore, consistenthash.ConsumerConfig{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	<-c.Ready()
	require.ErrorContains(t, c.Run(ctx), "running already")
	ch, err := s.broker.Dial(t).Channel()
	require.NoError(t, err)
	_, err = ch.QueueDelete(s.partitions.Name+".partitions", false, false, false)
	require.NoError(t, err)
	_, err = ch.QueueDeclare(s.partitions.Name+".partitions", true, false, false, false, amqp.Table{"x-queue-type": "classic", "x-max-length": int64(9)})
	if err != nil { // the consumer was faster
		var refused *amqp.Error
		require.ErrorAs(t, err, &refused)
		cancel()
		require.NoError(t, receive(t, done))
		return
	}
	err = receive(t, done)
	require.ErrorIs(t, err, consistenthash.ErrCountChanged)
	require.Equal(t, 1, strings.Count(err.Error(), "but the broker has 9"), "said once")
}

// Without its plugin the broker cannot hash. That is a clear error that says how to enable it, and living connections do not notice.
func TestMissingPlugin(t *testing.T) {
	node := testenv.Node(t)
	s := newSetupOn(t, node.Broker, consistenthash.Partitions{Count: 2})
	s.start(s.conn, ignore, consistenthash.ConsumerConfig{})
	s.publish([]string{"k"}, 0, 1)
	before := s.ports()

	var atom any
	node.Eval(t, &atom, `rabbit_registry:unregister(exchange, <<"x-consistent-hash">>).`)
	t.Cleanup(func() {
		node.Eval(t, &atom, `rabbit_registry:register(exchange, <<"x-consistent-hash">>, rabbit_exchange_type_consistent_hash).`)
	})
	p := consistenthash.Partitions{Name: testenv.Name(t, "hashed"), Count: 2, Plugin: true}
	t.Cleanup(func() { node.DeleteQueue(t, p.Name+".partitions") })
	pub, err := consistenthash.NewPublisher(s.conn, p, reconnect.PublisherConfig{})
	require.NoError(t, err)
	c, err := consistenthash.NewConsumer(s.conn, p, ignore, consistenthash.ConsumerConfig{})
	require.NoError(t, err)
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		for _, err := range []error{pub.Publish(ctx, "k", amqp.Publishing{}), c.Run(ctx)} {
			require.ErrorContains(t, err, "rabbitmq-plugins enable rabbitmq_consistent_hash_exchange")
			var fault *reconnect.TopologyError
			require.ErrorAs(t, err, &fault)
		}
		cancel()
	}
	s.publish([]string{"k"}, 1, 2)
	require.Equal(t, before, s.ports(), "the connections are the same")
	require.False(t, node.Queue(t, p.Queue(0)).Exists)
}

// ports are the connections, without those that were made only to try something on: the broker closes these, in its own time.
func (s *setup) ports() map[int]string {
	s.t.Helper()
	of := map[int]string{}
	for _, c := range s.broker.Connections(s.t, s.name) {
		if !strings.HasSuffix(c.Name, "/apart") {
			of[c.PeerPort] = c.Name
		}
	}
	return of
}

// P34: keys are spread evenly, by either way of hashing, and stay where they are over reconnects, whoever binds how often. Over a restart
// of the broker they stay only if the publisher hashes.
func TestP34KeysStayInPlace(t *testing.T) {
	node := testenv.Node(t)
	all := keys(400)
	hashed := newSetupOn(t, node.Broker, consistenthash.Partitions{Count: 4})
	plugin := newSetupOn(t, node.Broker, consistenthash.Partitions{Count: 4, Plugin: true})
	places := map[*setup]map[string]int{}
	for _, s := range []*setup{hashed, plugin} {
		before := s.places(all)
		places[s] = before
		for partition, n := range count(before) {
			require.InDelta(t, 100, n, 45, "partition %d", partition)
		}
		require.Positive(t, s.broker.CutConnections(t, s.name))
		require.NoError(t, s.start(s.dial("other"), ignore, consistenthash.ConsumerConfig{})())
		require.Equal(t, before, s.places(all), "after a reconnect")
	}
	for key, at := range places[hashed] {
		require.Equal(t, hashed.partitions.Of(key), at)
	}
	node.Restart()
	require.Equal(t, places[hashed], hashed.places(all), "after a restart")
	// The broker builds its ring anew from the bindings, on Mnesia in whatever order they come back: that is not ours to promise.
	moved, after := 0, plugin.places(all)
	for key, at := range after {
		if places[plugin][key] != at {
			moved++
		}
	}
	t.Logf("with the plugin %d of %d keys moved at a restart of RabbitMQ %s", moved, len(all), node.Version())
	for partition, n := range count(after) {
		require.InDelta(t, 100, n, 45, "partition %d", partition)
	}
}

// places publishes a message of each key and takes all again; it returns the partition of each.
func (s *setup) places(keys []string) map[string]int {
	s.t.Helper()
	s.publish(keys, 0, 1)
	at := map[string]int{}
	ch, err := s.broker.Dial(s.t).Channel()
	require.NoError(s.t, err)
	defer ch.Close()
	for i := range s.partitions.Count {
		n := s.depth(s.partitions.Queue(i))
		deliveries, err := ch.Consume(s.partitions.Queue(i), "", true, false, false, false, nil)
		require.NoError(s.t, err)
		for range n {
			d := receive(s.t, deliveries)
			at[d.Headers["warren-key"].(string)] = i
		}
	}
	require.Len(s.t, at, len(keys))
	return at
}

func count(places map[string]int) map[int]int {
	per := map[int]int{}
	for _, at := range places {
		per[at]++
	}
	return per
}

// Hashed by a header or a property, equal values meet in one partition whatever the key.
func TestPluginHashesHeaderOrProperty(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]consistenthash.Partitions{"header": {HashHeader: "customer"}, "property": {HashProperty: "correlation_id"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p.Count, p.Plugin = 4, true
			s := newSetup(t, p)
			for i := range 40 {
				require.NoError(t, s.publisher().Publish(t.Context(), fmt.Sprint("key-", i), amqp.Publishing{
					CorrelationId: "customer-7", Headers: amqp.Table{"customer": "customer-7"}}))
			}
			full := 0
			for i := range p.Count {
				if n := s.depth(s.partitions.Queue(i)); n > 0 {
					full++
					require.Equal(t, 40, n)
				}
			}
			require.Equal(t, 1, full)
		})
	}
}

// The two ways of hashing do not mix: whoever comes with the other is refused, and does not spoil the plugin's ring with a binding.
func TestPluginAndPublisherDoNotMix(t *testing.T) {
	t.Parallel()
	s := newSetup(t, consistenthash.Partitions{Count: 2, Plugin: true})
	s.publish([]string{"k"}, 0, 1)
	p := s.partitions
	p.Plugin = false
	pub, err := consistenthash.NewPublisher(s.dial("other"), p, reconnect.PublisherConfig{})
	require.NoError(t, err)
	var fault *reconnect.TopologyError
	require.ErrorAs(t, pub.Publish(t.Context(), "k", amqp.Publishing{}), &fault)
	require.Equal(t, "type", fault.Argument)
}

// What an operator has declared is used as it is; what is missing of it is waited for.
func TestPassive(t *testing.T) {
	t.Parallel()
	s, l := newSetup(t, consistenthash.Partitions{Count: 2}), newLedger()
	p := s.partitions
	p.Declare = reconnect.Passive
	c, err := consistenthash.NewConsumer(s.dial("passive"), p, func(_ context.Context, d amqp.Delivery) error { l.begin(d); return nil }, consistenthash.ConsumerConfig{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	select {
	case <-c.Ready():
		require.Fail(t, "ready without queues")
	case <-time.After(200 * time.Millisecond):
	}
	require.NoError(t, s.conn.Declare(t.Context(), s.partitions.Topology()))
	s.publish(keys(4), 0, 3)
	testenv.Eventually(t, patience, func() bool { return l.count() == 12 }, "all handled")
	cancel()
	require.NoError(t, receive(t, done))
	l.inOrder(t, keys(4), 3)
}

// Closing the Conn ends Run.
func TestRunEndsWithItsConn(t *testing.T) {
	t.Parallel()
	s := newSetup(t, consistenthash.Partitions{Count: 3})
	conn := s.dial("closed")
	c := s.consumer(conn, ignore, consistenthash.ConsumerConfig{})
	done := make(chan error, 1)
	go func() { done <- c.Run(context.Background()) }()
	<-c.Ready()
	require.NoError(t, conn.Close(context.Background()))
	err := receive(t, done)
	require.ErrorIs(t, err, reconnect.ErrClosed)
	require.EqualError(t, err, fmt.Sprintf("consistenthash: consume: partitions %q: reconnect: closed", s.partitions.Name), "said once, and where")
}
