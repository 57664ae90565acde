package workqueue_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

// P9, P27: twenty cuts at random moments while messages flow, also in the middle of a recovery. Whenever there is one
// consumer per worker, each of them has a prefetch within its bound, and no more is unacknowledged than all of these allow.
func TestP9ConsumersAndPrefetch(t *testing.T) {
	t.Parallel()
	const concurrency, prefetch, cuts = 4, 10, 20
	s := newSetup(t, workqueue.Queue{})
	f := newTraffic(t, 4)
	s.start(s.conn, func(ctx context.Context, d amqp.Delivery) error {
		f.note(d.MessageId, handled)
		return work(ctx, time.Millisecond)
	}, workqueue.WorkerConfig{Concurrency: concurrency, Prefetch: prefetch})
	p := s.producer(reconnect.PublisherConfig{})
	for i := range 4 {
		f.publisher(i, p, func() time.Duration { return patience })
	}
	looks, unacked := 0, 0
	settled := func() bool { return s.broker.Queue(t, s.queue.Name).Consumers == concurrency }
	look := func() {
		info := s.broker.Queue(t, s.queue.Name)
		for _, consumer := range info.Details {
			require.GreaterOrEqual(t, consumer.Prefetch, 1, "never without a limit")
			require.LessOrEqual(t, consumer.Prefetch, prefetch)
		}
		require.LessOrEqual(t, info.Consumers, concurrency)
		require.LessOrEqual(t, info.Unacked, concurrency*prefetch)
		looks, unacked = looks+1, max(unacked, info.Unacked)
	}
	for range cuts {
		require.NoError(t, work(t.Context(), time.Duration(rand.IntN(60))*time.Millisecond))
		s.broker.CutConnections(t, s.name+"/consuming")
		if rand.IntN(3) > 0 {
			testenv.Eventually(t, patience, settled, "one consumer per worker")
			look()
		}
	}
	testenv.Eventually(t, patience, settled, "one consumer per worker")
	n := f.count(handled)
	testenv.Eventually(t, patience, func() bool { look(); return f.count(handled) > n+200 }, "messages flow")
	f.stop()
	s.settled()
	f.verify()
	require.Zero(t, s.depth(s.queue.DeadLetterQueue()))
	t.Logf("at most %d unacknowledged in %d looks, %d allowed", unacked, looks, concurrency*prefetch)
}

// P26: the Conn is closed in the middle of 200 messages whose handlers publish. Started ones finish, with what they
// publish, and do not come again; the rest is back in the queue.
func TestP26CloseInTheMiddle(t *testing.T) {
	t.Parallel()
	const messages, job = 200, 50 * time.Millisecond
	s := newSetup(t, workqueue.Queue{})
	s.publish(messages)
	results := workqueue.Queue{Name: s.queue.Name + ".results"}
	t.Cleanup(func() {
		s.broker.DeleteQueue(t, results.Name)
		s.broker.DeleteQueue(t, results.DeadLetterQueue())
	})
	conn := s.dial(testenv.Name(t, "closing"))
	p, err := workqueue.NewProducer(conn, results, reconnect.PublisherConfig{})
	require.NoError(t, err)
	started := newRuns()
	stop := s.start(conn, func(ctx context.Context, d amqp.Delivery) error {
		started.add(d)
		if err := work(ctx, job); err != nil {
			return err
		}
		return p.Publish(ctx, amqp.Publishing{MessageId: d.MessageId})
	}, workqueue.WorkerConfig{Concurrency: 2, Prefetch: 20})
	testenv.Eventually(t, patience, func() bool { return started.total() >= 20 }, "some handled")

	began := time.Now()
	require.NoError(t, conn.Close(t.Context()))
	took(t, began, job+time.Second, "Close")
	require.ErrorIs(t, stop(), reconnect.ErrClosed)
	require.Equal(t, 1, started.most())
	require.Equal(t, started.total(), s.depth(results.Name), "each has published")
	testenv.Eventually(t, patience, func() bool { return s.broker.Queue(t, s.queue.Name).Unacked == 0 }, "nothing is held any more")
	require.Equal(t, messages-started.total(), s.depth(s.queue.Name), "what was started is acknowledged, the rest is back")
	for _, d := range s.take(s.queue.Name, messages-started.total()) {
		require.Zero(t, started.of(d.MessageId), "message %s was finished", d.MessageId)
	}
	require.Zero(t, s.depth(s.queue.DeadLetterQueue()))
}
