package workqueue_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

// A2: under a memory alarm publishes and Close end with their contexts, the error tells whether anything was sent, what is
// in the queue is handled and acknowledged, and afterwards publishing goes on by itself.
func TestA2MemoryAlarm(t *testing.T) {
	t.Parallel()
	const bound = 2 * time.Second
	node := testenv.Node(t)
	s := newSetupOn(t, node.Broker, node.URL(), workqueue.Queue{})
	s.publish(20)
	p := s.producer(reconnect.PublisherConfig{})
	closing := s.open(reconnect.Config{Name: testenv.Name(t, "closing")})
	defer closing.Close(context.Background())
	other, err := workqueue.NewProducer(closing, s.queue, reconnect.PublisherConfig{})
	require.NoError(t, err)
	require.NoError(t, other.Publish(t.Context(), amqp.Publishing{}))
	node.Alarm(true)

	// The broker tells a connection of the alarm only when that publishes, so the first message may still get through.
	for _, p := range []*workqueue.Producer{p, other} {
		began := time.Now()
		if err := p.Publish(within(t, bound), amqp.Publishing{MessageId: "first"}); err != nil {
			require.ErrorIs(t, err, reconnect.ErrUnknown)
			require.ErrorIs(t, err, reconnect.ErrBlocked)
		}
		took(t, began, bound, "the first publish")
	}
	for _, conn := range []*reconnect.Conn{s.conn, closing} {
		testenv.Eventually(t, patience, func() bool { return conn.State()[0].Phase == "blocked" }, "the state says so")
	}
	waiting, doomed := make(chan error, 1), make(chan error, 1)
	go func() { waiting <- p.Publish(within(t, patience), amqp.Publishing{MessageId: "waits"}) }()
	go func() { doomed <- other.Publish(context.Background(), amqp.Publishing{MessageId: "doomed"}) }()
	began := time.Now()
	err = p.Publish(within(t, bound), amqp.Publishing{MessageId: "not sent"})
	took(t, began, bound, "a publish")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, reconnect.ErrBlocked)
	require.NotErrorIs(t, err, reconnect.ErrUnknown)

	began = time.Now()
	err = closing.Close(within(t, bound))
	took(t, began, bound, "Close")
	require.ErrorIs(t, err, context.DeadlineExceeded, "it says that a call was cut off")
	require.ErrorIs(t, receive(t, doomed, "the outcome of the call that was cut off"), reconnect.ErrClosed)

	handled := newRuns()
	s.start(s.conn, func(_ context.Context, d amqp.Delivery) error { handled.add(d); return nil }, workqueue.WorkerConfig{Prefetch: 5})
	s.settled()
	require.GreaterOrEqual(t, handled.distinct(), 20, "an alarm does not freeze acknowledgements")

	node.Alarm(false)
	require.NoError(t, receive(t, waiting, "publishing goes on by itself"))
	testenv.Eventually(t, patience, func() bool { return handled.of("waits") == 1 }, "what waited is handled")
	require.Zero(t, handled.of("not sent"))
}

// A3: the broker stops where it is, with its sockets open, and goes on later. The loss is noticed within three heartbeats,
// by the links and by the handler that runs; no publish outlives its context, those that may not wait say that they
// do not know, those that may are sent again; nothing that was confirmed is lost.
func TestA3FrozenBroker(t *testing.T) {
	t.Parallel()
	const heartbeat, publishers = time.Second, 8
	node := testenv.Node(t)
	s := newSetupWith(t, node.Broker, node.URL(), workqueue.Queue{}, reconnect.Config{Heartbeat: heartbeat})
	f := newTraffic(t, publishers+1)
	inside, causes := make(chan struct{}), make(chan error, 1)
	var slow atomic.Bool
	s.start(s.conn, func(ctx context.Context, d amqp.Delivery) error {
		if slow.CompareAndSwap(true, false) {
			close(inside)
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return ctx.Err()
		}
		f.note(d.MessageId, handled)
		return nil
	}, workqueue.WorkerConfig{Concurrency: 4, Prefetch: 10})
	p := s.producer(reconnect.PublisherConfig{})
	for i := range publishers {
		f.publisher(i, p, func() time.Duration {
			if i%2 == 0 {
				return patience
			}
			return 300 * time.Millisecond
		})
	}
	slow.Store(true)
	receive(t, inside, "a slow message")

	began := time.Now()
	node.Freeze()
	require.Error(t, receive(t, causes, "the end of the handler's context"))
	testenv.Eventually(t, patience, func() bool {
		links := s.conn.State()[:2]
		return links[0].Phase == "connecting" && links[1].Phase == "connecting"
	}, "both links are known to be lost")
	took(t, began, 3*heartbeat, "to notice the loss")
	require.Positive(t, f.kind("unknown+deadline"), "publishes that could not wait are in doubt")
	node.Thaw()

	n := f.count(confirmed)
	testenv.Eventually(t, patience, func() bool { return f.count(confirmed) >= n+100 }, "publishing goes on")
	f.stop()
	s.settled()
	f.verify()
	for number := 0; number < publishers; number += 2 {
		require.Zero(t, f.unconfirmed(number), "publishes that could wait were sent again")
	}
	require.Zero(t, s.depth(s.queue.DeadLetterQueue()))
}
