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

// ackTimeout is what the node is set to; it looks every ackTick. It holds for the messages that are handled at once, too, and is
// longer than this process may pause with one of them.
const (
	ackTimeout = 2 * time.Second
	ackTick    = time.Second
)

// A12: a handler takes longer than the broker waits for an acknowledgement. Its context ends with that as the cause,
// the worker consumes again, and the message is handled again.
func TestA12AckTimeout(t *testing.T) {
	t.Parallel()
	node := testenv.Node(t)
	node.ConsumerTimeout(ackTimeout)
	s := newSetupOn(t, node.Broker, node.URL(), workqueue.Queue{})
	handled, causes := newRuns(), make(chan error, 1)
	s.start(s.conn, func(ctx context.Context, d amqp.Delivery) error {
		handled.add(d)
		if d.MessageId == "0" && handled.of("0") == 1 {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return ctx.Err()
		}
		return nil
	}, workqueue.WorkerConfig{})
	s.publish(1)
	testenv.Eventually(t, patience, func() bool { return handled.of("0") == 1 }, "started")
	began := time.Now()
	requireAckTimeout(t, receive(t, causes, "the end of the handler's context"))
	took(t, began, ackTimeout+ackTick, "to end the handler's context")
	s.settled()
	require.Equal(t, 2, handled.of("0"), "handled again")
	require.Zero(t, s.depth(s.queue.DeadLetterQueue()))
	require.Equal(t, 1, s.broker.Queue(t, s.queue.Name).Consumers)
}

func requireAckTimeout(t *testing.T, cause error) {
	t.Helper()
	var refusal *amqp.Error
	require.ErrorAs(t, cause, &refusal)
	require.Equal(t, amqp.PreconditionFailed, refusal.Code)
	require.Contains(t, refusal.Reason, "timed out")
}

// P23: an ack timeout costs the one channel. Its siblings and the connection live, others get the message although the handler
// is still running, and what that answers in the end does no harm.
func TestP23AckTimeoutCostsOneChannel(t *testing.T) {
	t.Parallel()
	node, log := testenv.Node(t), newLines()
	node.ConsumerTimeout(ackTimeout)
	s := newSetupWith(t, node.Broker, node.URL(), workqueue.Queue{}, reconnect.Config{Logger: testenv.LoggerTo(log)})
	handled, again := newRuns(), make(chan struct{})
	s.start(s.conn, func(_ context.Context, d amqp.Delivery) error {
		handled.add(d)
		switch {
		case d.MessageId != "0":
		case handled.of("0") == 1:
			<-again // whatever its context says
		default:
			close(again)
		}
		return nil
	}, workqueue.WorkerConfig{Concurrency: 2})
	consuming(t, s.conn, 2)
	connection := s.broker.Connections(t, s.name+"/consuming")
	require.Len(t, connection, 1)
	s.publish(1)
	p := s.producer(reconnect.PublisherConfig{})
	testenv.Eventually(t, patience, func() bool {
		require.NoError(t, p.Publish(t.Context(), amqp.Publishing{MessageId: "other"}))
		select {
		case <-again:
			return true
		default:
			return false
		}
	}, "the message is handled again")
	s.settled()
	testenv.Eventually(t, patience, func() bool { return log.count(staleSettle) == 1 }, "the late answer is counted")
	require.Equal(t, 2, handled.of("0"))
	require.Equal(t, 1, log.count(lostChannel), "one channel was lost")
	require.Equal(t, connection[0].PeerPort, s.broker.Connections(t, s.name+"/consuming")[0].PeerPort, "the connection is the same")
	consuming(t, s.conn, 2)
	require.Zero(t, s.depth(s.queue.DeadLetterQueue()))
}

// A handler's time is HandlerTimeout, by default 5/6 of the Conn's ConsumerTimeout shared among the prefetched ones; one that
// exceeds it has failed.
func TestHandlerTimeout(t *testing.T) {
	t.Parallel()
	broker := testenv.Shared(t)
	s := newSetupWith(t, broker, broker.URL(), workqueue.Queue{}, reconnect.Config{ConsumerTimeout: time.Minute})
	q := s.queue

	_, err := workqueue.NewWorker(s.conn, q, ignore, workqueue.WorkerConfig{Prefetch: 3, HandlerTimeout: 21 * time.Second})
	require.ErrorContains(t, err, "HandlerTimeout: 21s")
	require.ErrorContains(t, err, "ConsumerTimeout (1m0s)")
	_, err = workqueue.NewWorker(s.conn, q, ignore, workqueue.WorkerConfig{Prefetch: 3, HandlerTimeout: 20 * time.Second})
	require.NoError(t, err)

	type deadline struct {
		left time.Duration
		set  bool
	}
	deadlines := make(chan deadline, 1)
	look := func(ctx context.Context, _ amqp.Delivery) error {
		at, set := ctx.Deadline()
		deadlines <- deadline{time.Until(at), set}
		return nil
	}
	for name, c := range map[string]struct {
		cfg  workqueue.WorkerConfig
		want time.Duration
	}{
		"default":       {workqueue.WorkerConfig{}, 50 * time.Second},
		"over prefetch": {workqueue.WorkerConfig{Prefetch: 10}, 5 * time.Second},
		"given":         {workqueue.WorkerConfig{HandlerTimeout: 3 * time.Second}, 3 * time.Second},
	} {
		stop := s.start(s.conn, look, c.cfg)
		s.publish(1)
		got := receive(t, deadlines, "a deadline")
		require.True(t, got.set, name)
		require.InDelta(t, c.want, got.left, float64(time.Second), name)
		require.NoError(t, stop())
	}
	s.settled()
	stop := s.start(s.conn, look, workqueue.WorkerConfig{HandlerTimeout: -1})
	s.publish(1)
	require.False(t, receive(t, deadlines, "no deadline").set)
	require.NoError(t, stop())

	var ended atomic.Value
	s.start(s.conn, func(ctx context.Context, _ amqp.Delivery) error {
		<-ctx.Done()
		ended.Store(context.Cause(ctx))
		return ctx.Err()
	}, workqueue.WorkerConfig{HandlerTimeout: 50 * time.Millisecond})
	s.publish(1)
	require.Len(t, s.takeDead(1), 1)
	require.ErrorIs(t, ended.Load().(error), context.DeadlineExceeded)
}
