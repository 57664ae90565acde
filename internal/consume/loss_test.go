package consume

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// A slow handler outlives its connection. On the new one another message has the same tag: it is not settled by the late answer,
// and nothing is lost.
func TestStaleSettleTouchesNoForeignMessage(t *testing.T) {
	for name, answer := range map[string]error{"ack": nil, "reject": errBad} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			r.publish(0, 1)
			type call struct {
				d     amqp.Delivery
				cause error
			}
			late, again, release := make(chan call, 1), make(chan call, 10), make(chan struct{})
			var calls atomic.Int64
			returned := make(chan struct{})
			cfg := r.config(func(ctx context.Context, d amqp.Delivery) error {
				if calls.Add(1) == 1 {
					defer close(returned)
					<-ctx.Done()
					late <- call{d, context.Cause(ctx)}
					<-release
					return answer
				}
				again <- call{d: d}
				if d.MessageId == "other" {
					<-returned
					<-ctx.Done() // never settled by this loop
				}
				return nil
			})
			cfg.ShutdownTimeout = time.Second
			l := start(t, cfg).waitReady()
			r.eventually(func() bool { return calls.Load() == 1 }, "started")
			require.Equal(t, 1, r.broker.CutConnections(t, r.link.name))
			first := <-late
			var why *amqp.Error
			require.ErrorAs(t, first.cause, &why)
			require.Equal(t, 320, why.Code)
			second := <-again // the same message, on the new channel, while the first handler is still inside
			require.Equal(t, "0", second.d.MessageId)
			require.Equal(t, first.d.DeliveryTag, second.d.DeliveryTag, "tags begin anew")
			require.True(t, second.d.Redelivered)
			close(release)
			r.eventually(func() bool { return l.Stats().Stale == 1 }, "stale settle counted")
			r.empty(0)
			require.NoError(t, l.stop())
			require.Equal(t, Stats{Handled: 1, Stale: 1}, l.Stats())
		})
	}
}

// The same, with the foreign message still open when the late answer comes.
func TestStaleSettleOfAnEqualTag(t *testing.T) {
	r := newRig(t, nil)
	r.publish(0, 1)
	var calls atomic.Int64
	inside := make(chan uint64, 2)
	release, foreign := make(chan struct{}), make(chan struct{})
	cfg := r.config(func(_ context.Context, d amqp.Delivery) error {
		inside <- d.DeliveryTag
		if calls.Add(1) == 1 {
			<-release
			return nil
		}
		<-foreign
		return nil
	})
	l := start(t, cfg)
	first := <-inside
	require.Equal(t, 1, r.broker.CutConnections(t, r.link.name))
	require.Equal(t, first, <-inside)
	close(release)
	r.eventually(func() bool { return l.Stats().Stale == 1 }, "late answer")
	require.Equal(t, 1, r.broker.Queue(t, r.queue).Unacked, "the one with the same tag is still open")
	close(foreign)
	r.empty(0)
	require.NoError(t, l.stop())
}

// Handlers that ignore the end of their context do not pile up: one may run beside the worker's next.
func TestOrphansAreBounded(t *testing.T) {
	r := newRig(t, nil)
	r.publish(0, 1)
	var running, most atomic.Int64
	release := make(chan struct{})
	cfg := r.config(func(context.Context, amqp.Delivery) error {
		raise(&most, running.Add(1))
		defer running.Add(-1)
		<-release
		return nil
	})
	l := start(t, cfg)
	for i := range 2 {
		r.eventually(func() bool { return int(running.Load()) == i+1 }, "started")
		require.Equal(t, 1, r.broker.CutConnections(t, r.link.name))
	}
	r.eventually(func() bool {
		s := r.link.state("worker")
		return strings.Contains(s[len(s)-1], "waiting: 2 handlers of lost channels")
	}, "the state says why")
	require.EqualValues(t, 2, running.Load())
	close(release)
	r.empty(0)
	require.NoError(t, l.stop())
	require.EqualValues(t, 2, most.Load())
	require.EqualValues(t, 2, l.Stats().Stale)
}

// An ordered worker does not consume again before its handler has returned.
func TestOrderedWaitsForItsHandler(t *testing.T) {
	r := newOrderedRig(t)
	r.publish(0, 2)
	var calls, running atomic.Int64
	release := make(chan struct{})
	cfg := r.config(func(context.Context, amqp.Delivery) error {
		defer running.Add(-1)
		if running.Add(1) > 1 {
			panic("two at once")
		}
		if calls.Add(1) == 1 {
			<-release
		}
		return nil
	})
	cfg.Ordered, cfg.Prefetch = true, 2
	l := start(t, cfg)
	r.eventually(func() bool { return calls.Load() == 1 }, "started")
	require.Equal(t, 1, r.broker.CutConnections(t, r.link.name))
	r.eventually(func() bool { return r.link.channels() == 2 }, "a new channel")
	r.eventually(func() bool {
		s := r.link.state("worker")
		return strings.HasPrefix(s[len(s)-1], "waiting: 1 handlers")
	}, "waits")
	r.eventually(func() bool { return len(consumers(r)) == 0 }, "the lost channel's consumer is gone, and there is no other")
	close(release)
	r.empty(0)
	require.NoError(t, l.stop())
	require.EqualValues(t, 3, calls.Load())
}

// Channels closed and queues deleted under a worker lead back to the top.
func TestComesBack(t *testing.T) {
	r := newRig(t, nil)
	var seen record
	cfg := r.config(seen.handler)
	cfg.Concurrency, cfg.Prefetch, cfg.SlowStart = 2, 10, true
	l := start(t, cfg).waitReady()
	handles := func(id int) {
		r.publish(id, 1)
		r.eventually(func() bool { return slices.Contains(seen.all(), strconv.Itoa(id)) }, "message %d", id)
		r.eventually(func() bool { return len(consumers(r)) == 2 }, "one consumer per worker")
	}
	handles(0)
	require.Equal(t, 2, r.broker.CloseChannels(t, r.link.name))
	handles(1)
	require.Equal(t, 1, r.broker.CutConnections(t, r.link.name))
	handles(2)

	ch := r.channel()
	_, err := ch.QueueDelete(r.queue, false, false, false)
	require.NoError(t, err)
	channels := r.link.channels()
	r.eventually(func() bool { return r.link.channels() > channels+2 }, "it keeps asking")
	_, err = ch.QueueDeclare(r.queue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	require.NoError(t, err)
	handles(3)
	require.NoError(t, l.stop())
}

// A queue is deleted while a handler runs: its context ends with the reason.
func TestCancelByTheBrokerEndsTheHandler(t *testing.T) {
	r := newRig(t, nil)
	r.publish(0, 1)
	entered, cause := make(chan struct{}), make(chan error, 1)
	cfg := r.config(func(ctx context.Context, _ amqp.Delivery) error {
		close(entered)
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return ctx.Err()
	})
	l := start(t, cfg)
	waitFor(t, "handler", entered)
	_, err := r.channel().QueueDelete(r.queue, false, false, false)
	require.NoError(t, err)
	require.ErrorIs(t, <-cause, errCancelled)
	require.NoError(t, l.stop())
	require.EqualValues(t, 1, l.Stats().Stale)
}

func TestHandlerTimeout(t *testing.T) {
	r := newRig(t, nil)
	r.publish(0, 1)
	cause := make(chan error, 1)
	cfg := r.config(func(ctx context.Context, _ amqp.Delivery) error {
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return ctx.Err()
	})
	cfg.HandlerTimeout = 50 * time.Millisecond
	l := start(t, cfg)
	require.ErrorIs(t, <-cause, context.DeadlineExceeded)
	r.empty(1) // an error like any other
	require.NoError(t, l.stop())
}

// The link is cut while the loop drains: it ends, and what was finished may come again.
func TestCutWhileStopping(t *testing.T) {
	r := newRig(t, nil)
	r.publish(0, 5)
	entered, release := make(chan struct{}), make(chan struct{})
	cfg := r.config(func(ctx context.Context, _ amqp.Delivery) error {
		close(entered)
		<-ctx.Done()
		<-release
		return nil
	})
	cfg.Prefetch = 5
	l := start(t, cfg)
	waitFor(t, "handler", entered)
	r.held(5)
	l.cancel()
	r.eventually(func() bool { return r.broker.Queue(t, r.queue).Ready == 4 }, "handed back")
	require.Equal(t, 1, r.broker.CutConnections(t, r.link.name))
	close(release)
	require.NoError(t, l.wait(3*time.Second))
	require.Equal(t, Stats{Returned: 4, Stale: 1}, l.Stats())
	require.Len(t, r.drainQueue(r.queue), 5)
}

// The broker's consumer timeout closes only the channel: the handler's context says so, and the message comes again. (The
// timeout holds for the quick messages, too, and is longer than this process may pause with one of them.)
func TestConsumerTimeout(t *testing.T) {
	t.Parallel()
	node := testenv.Node(t)
	node.ConsumerTimeout(2 * time.Second)
	r := newRigOn(t, node.Broker, nil)
	r.publish(0, 2)
	var calls atomic.Int64
	cause := make(chan error, 1)
	cfg := r.config(func(ctx context.Context, d amqp.Delivery) error {
		if calls.Add(1) == 1 {
			<-ctx.Done()
			cause <- context.Cause(ctx)
			return ctx.Err()
		}
		return nil
	})
	cfg.HandlerTimeout = -1
	l := start(t, cfg)
	var why *amqp.Error
	require.ErrorAs(t, <-cause, &why)
	require.Equal(t, amqp.PreconditionFailed, why.Code)
	r.empty(0)
	require.NoError(t, l.stop())
	require.Equal(t, Stats{Handled: 2, Stale: 1}, l.Stats())
}

// A message that waits is handed back before the broker loses patience with the channel: a sixth of the timeout before, which is
// long enough for a pause of this process or of the broker.
func TestNotNowIsFasterThanTheConsumerTimeout(t *testing.T) {
	t.Parallel()
	const timeout = 7200 * time.Millisecond
	node := testenv.Node(t)
	node.ConsumerTimeout(timeout)
	r := newRigOn(t, node.Broker, nil)
	r.publish(0, 5)
	var up atomic.Bool
	cfg := r.config(func(context.Context, amqp.Delivery) error {
		if up.Load() {
			return nil
		}
		return busy{100 * time.Millisecond}
	})
	cfg.Prefetch, cfg.SlowStart, cfg.ConsumerTimeout = 5, true, timeout
	l := start(t, cfg)
	r.eventually(func() bool { return l.Stats().Returned >= 2 }, "handed back twice")
	up.Store(true)
	r.empty(0)
	require.NoError(t, l.stop())
	require.Equal(t, 1, r.link.channels(), "the broker closed none")
}
