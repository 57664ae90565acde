package consume

import (
	"context"
	"errors"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// What no handler has begun with goes back as a copy, which is not marked as redelivered; what one has begun with, and what
// cannot be copied, goes back itself.
func TestRequeue(t *testing.T) {
	const n = 10
	r := newRig(t, amqp.Table{"x-queue-type": "classic"})
	r.publish(0, n)
	entered := make(chan struct{}, n)
	cfg := r.config(func(ctx context.Context, _ amqp.Delivery) error {
		entered <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})
	cfg.Prefetch, cfg.ShutdownTimeout = n, 100*time.Millisecond
	cfg.Requeue = func(ctx context.Context, d amqp.Delivery) error {
		if d.MessageId == "5" {
			return errors.New("no copy of that")
		}
		ch := r.channel()
		defer ch.Close()
		return ch.PublishWithContext(ctx, "", r.queue, false, false, amqp.Publishing{MessageId: d.MessageId})
	}
	l := start(t, cfg)
	waitFor(t, "handler", entered)
	r.held(n)
	require.NoError(t, l.stop())
	rest := r.drainQueue(r.queue)
	require.Len(t, rest, n)
	for _, d := range rest {
		require.Equal(t, d.MessageId == "0" || d.MessageId == "5", d.Redelivered, d.MessageId)
	}
	require.EqualValues(t, n, l.Stats().Returned)
	require.Zero(t, l.Stats().Stale)
}

// A message that was told "not now" has not been begun with.
func TestRequeueAfterNotNow(t *testing.T) {
	r := newRig(t, amqp.Table{"x-queue-type": "classic"})
	r.publish(0, 1)
	entered, moved := make(chan struct{}, 10), make(chan struct{}, 10)
	cfg := r.config(func(context.Context, amqp.Delivery) error {
		entered <- struct{}{}
		return busy{time.Minute}
	})
	cfg.Requeue = func(context.Context, amqp.Delivery) error { moved <- struct{}{}; return nil }
	l := start(t, cfg)
	waitFor(t, "handler", entered)
	require.NoError(t, l.stop())
	waitFor(t, "copy", moved)
	require.Empty(t, r.drainQueue(r.queue))
}

// The handler is told when its message came, not when its turn was: behind others in the prefetch, and after a "not now".
func TestArrived(t *testing.T) {
	t.Parallel()
	const pause = time.Second // much longer than a message takes from the socket to the handler
	for _, prefetch := range []int{1, 10} {
		r := newRig(t, amqp.Table{"x-queue-type": "classic"})
		waits, come := make(chan time.Duration, 10), make(chan struct{})
		tries := 0
		cfg := r.config(func(ctx context.Context, d amqp.Delivery) error {
			waits <- time.Since(Arrived(ctx))
			if tries++; tries == 1 {
				<-come
				return busy{pause}
			}
			return nil
		})
		cfg.Prefetch, cfg.Stamp = prefetch, true
		l := start(t, cfg).waitReady()
		r.publish(0, 2)
		r.held(min(2, prefetch))
		close(come)
		r.eventually(func() bool { return len(waits) == 3 }, "both are handled")
		first, again, second := <-waits, <-waits, <-waits
		require.Less(t, first, pause)
		require.GreaterOrEqual(t, again, pause)
		if prefetch > 1 {
			require.GreaterOrEqual(t, second, pause/2, "it came while the first one waited")
		} else {
			require.Less(t, second, pause)
		}
		require.NoError(t, l.stop())
	}
	require.Zero(t, Arrived(t.Context()))
}
