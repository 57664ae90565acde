package consistenthash_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/routing/consistenthash"
)

// A stop lets what was begun come to its end and begins nothing else: no message is handled twice, and the rest is there for the next.
func TestStopDrains(t *testing.T) {
	testenv.NoLeaks(t)
	s, l, all := newSetup(t, consistenthash.Partitions{Count: 4}), newLedger(), keys(20)
	s.publish(all, 0, 10)
	inside, finished := make(chan struct{}, 300), atomic.Int64{}
	stop := s.start(s.dial("first"), func(ctx context.Context, d amqp.Delivery) error {
		l.begin(d)
		inside <- struct{}{}
		err := work(ctx, 300*time.Millisecond)
		finished.Add(1)
		return err
	}, consistenthash.ConsumerConfig{Prefetch: 3})
	for range 4 {
		receive(t, inside)
	}
	require.NoError(t, stop())
	require.EqualValues(t, finished.Load(), l.count())
	s.start(s.conn, func(_ context.Context, d amqp.Delivery) error { l.begin(d); return nil }, consistenthash.ConsumerConfig{Prefetch: 3})
	s.settled()
	l.inOrder(t, all, 10)
	require.Zero(t, l.again)
}

// A handler that ignores its context is left behind, and counted.
func TestStopCountsWhoStays(t *testing.T) {
	t.Parallel()
	s := newSetup(t, consistenthash.Partitions{Count: 3})
	s.publish([]string{"k"}, 0, 1)
	inside, release := make(chan struct{}), make(chan struct{})
	conn := s.dialTo(s.broker.URL(), "stubborn", reconnect.Config{AbandonAfter: 50 * time.Millisecond})
	stop := s.start(conn, func(context.Context, amqp.Delivery) error {
		close(inside)
		<-release
		return nil
	}, consistenthash.ConsumerConfig{ShutdownTimeout: 50 * time.Millisecond})
	receive(t, inside)
	err := stop()
	close(release)
	require.ErrorContains(t, err, "1 handlers still running")
}

// A message that waits as long as the consumer timeout allows is handed back, and comes again in its place.
func TestConsumerTimeoutKeepsTheOrder(t *testing.T) {
	t.Parallel()
	s, l := newSetup(t, consistenthash.Partitions{Count: 1}), newLedger()
	s.publish([]string{"k"}, 0, 5)
	var redelivered, over atomic.Bool
	conn := s.dialTo(s.broker.URL(), "short", reconnect.Config{ConsumerTimeout: 600 * time.Millisecond})
	s.start(conn, func(_ context.Context, d amqp.Delivery) error {
		l.begin(d)
		if d.Redelivered {
			redelivered.Store(true)
		}
		if !over.Load() {
			return notNow{}
		}
		return nil
	}, consistenthash.ConsumerConfig{MaxAttempts: 2})
	testenv.Eventually(t, patience, redelivered.Load, "handed back and here again")
	require.Equal(t, 1, l.count(), "nothing has overtaken it")
	over.Store(true)
	s.settled()
	l.inOrder(t, []string{"k"}, 5)
	require.Zero(t, s.depth(s.partitions.DeadLetterQueue()))
}

// What an instance on a frozen link was active on goes on elsewhere, in order, once the broker has missed its heartbeats.
func TestFrozenInstanceIsReplaced(t *testing.T) {
	t.Parallel()
	const heartbeat = 2 * time.Second
	s, l, all := newSetup(t, consistenthash.Partitions{Count: 4}), newLedger(), keys(20)
	proxy := testenv.Proxy(t, s.broker.URL())
	handler := func(_ context.Context, d amqp.Delivery) error { l.begin(d); return nil }
	s.start(s.dialTo(proxy.URL(), "frozen", reconnect.Config{Heartbeat: heartbeat}), handler, consistenthash.ConsumerConfig{})
	s.publish(all, 0, 5)
	s.settled() // it is active everywhere
	s.start(s.dial("waiting"), handler, consistenthash.ConsumerConfig{})
	proxy.Freeze()
	began := time.Now()
	s.publish(all, 5, 10)
	testenv.Eventually(t, patience, func() bool { return l.count() == 200 }, "all handled")
	took := time.Since(began)
	require.Less(t, took, 3*3*heartbeat, "after %v, and the broker gives it up within three heartbeats of silence", took)
	s.settled()
	l.inOrder(t, all, 10)
	t.Logf("replaced after %v, with heartbeats of %v", took.Round(time.Millisecond), heartbeat)
}

// The rights that the package comment names are enough, for each of the two that use what others have declared.
func TestRights(t *testing.T) {
	t.Parallel()
	s, l := newSetup(t, consistenthash.Partitions{Count: 2}), newLedger()
	own := "^" + s.partitions.Name
	user := func(name, configure, write, read string) *reconnect.Conn {
		name = testenv.Name(t, name)
		url := s.broker.AddUser(t, name, testenv.Secret())
		s.broker.SetPermissions(t, name, configure, write, read)
		t.Cleanup(func() { s.broker.DeleteUser(t, name) })
		return s.dialTo(url, name, reconnect.Config{})
	}
	all := user("all", own, own+"|^amq.default$", own)
	publishes := user("publishes", "^$", own+"$", "^$")
	consumes := user("consumes", "^$", "^$", own+`\.`)

	require.NoError(t, all.Declare(t.Context(), s.partitions.Topology()))
	given := s.partitions
	given.Declare = reconnect.Skip
	publisher, err := consistenthash.NewPublisher(publishes, given, reconnect.PublisherConfig{})
	require.NoError(t, err)
	require.NoError(t, publisher.PublishBatch(t.Context(), []reconnect.Message{message("k", 0), message("k", 1)}))
	consumer, err := consistenthash.NewConsumer(consumes, given, func(_ context.Context, d amqp.Delivery) error {
		l.begin(d)
		if string(d.Body) == "1" {
			return errors.New("no")
		}
		return nil
	}, consistenthash.ConsumerConfig{MaxAttempts: 1})
	require.NoError(t, err)
	run(t, consumer)
	testenv.Eventually(t, patience, func() bool { return s.depth(s.partitions.DeadLetterQueue()) == 1 }, "handled and dead-lettered")
	l.inOrder(t, []string{"k"}, 2)

	publisher, err = consistenthash.NewPublisher(user("nobody", "^$", "^$", "^$"), s.partitions, reconnect.PublisherConfig{})
	require.NoError(t, err)
	var fault *reconnect.TopologyError
	require.ErrorAs(t, publisher.Publish(t.Context(), "k", amqp.Publishing{}), &fault)
}
