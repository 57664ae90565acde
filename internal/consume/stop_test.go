package consume

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// A stop in the middle: what was started is acknowledged and does not come again, the rest is handed back once, whatever worker
// had it; but for what a busy broker sends so late that a worker's end overtakes it, which it gives to a neighbour: the answer to
// the last acknowledgement of each.
func TestShutdownInTheMiddle(t *testing.T) {
	const n, work = 200, 200 * time.Millisecond
	r := newRig(t, nil)
	r.publish(0, n)
	var seen record
	cfg := r.config(func(_ context.Context, d amqp.Delivery) error {
		seen.add(d)
		time.Sleep(work)
		return nil
	})
	cfg.Concurrency, cfg.Prefetch = 4, 20
	l := start(t, cfg)
	r.eventually(func() bool { return seen.len() >= 10 }, "some are started")
	began := time.Now()
	require.NoError(t, l.stop())
	// All that the workers hold would take 4 s.
	require.Less(t, time.Since(began), work+neighbours, "the longest handler, and no wait for a neighbour that does not stop")
	rest := r.drainQueue(r.queue)
	require.Len(t, rest, n-seen.len())
	all, again := seen.all(), 0
	for _, d := range rest {
		require.LessOrEqual(t, returns(d), int64(cfg.Concurrency), d.MessageId)
		if returns(d) > 1 {
			again++
		}
		all = append(all, d.MessageId)
	}
	require.LessOrEqual(t, again, cfg.Concurrency, "came to a neighbour that was stopping, too")
	require.ElementsMatch(t, ids(0, n), all)
	require.EqualValues(t, seen.len(), l.Stats().Handled)
}

// Whatever a life does to messages it did not start, their delivery limit (20) is not used up.
func TestStopsAndCutsCostNobodyAnAttempt(t *testing.T) {
	const n, lives = 200, 30
	for _, how := range []string{"stop", "cut"} {
		t.Run(how, func(t *testing.T) {
			r := newRig(t, nil)
			r.publish(0, n)
			var seen record
			handled := make(chan struct{}, n)
			cfg := r.config(func(_ context.Context, d amqp.Delivery) error {
				seen.add(d)
				select {
				case handled <- struct{}{}:
				default:
				}
				time.Sleep(time.Millisecond) // a handler's work
				return nil
			})
			cfg.Prefetch, cfg.SlowStart, cfg.Quorum = 100, true, true // a life may get as far as many acknowledgements under way
			l, err := New(cfg)
			require.NoError(t, err)
			var run *run
			if how == "cut" {
				run = startLoop(t, l)
			}
			for range lives {
				if how == "stop" {
					run = startLoop(t, l)
				}
				for range rand.IntN(5) {
					waitFor(t, "handler", handled)
				}
				if how == "stop" {
					require.NoError(t, run.stop())
				} else {
					r.eventually(func() bool { return r.broker.CutConnections(t, r.link.name) > 0 }, "a connection to cut")
				}
			}
			if how == "stop" {
				require.Zero(t, l.Stats().Stale)
				require.Len(t, r.drainQueue(r.queue), n-seen.len(), "each handled once")
				require.Empty(t, r.drainQueue(r.dlq))
				return
			}
			r.empty(0)
			require.NoError(t, run.stop())
		})
	}
}

// A handler that runs on when the grace period is over sees its context end; its message is not to blame.
func TestGraceEnds(t *testing.T) {
	r := newRig(t, nil)
	r.publish(0, 2)
	entered, cause := make(chan struct{}), make(chan error, 1)
	cfg := r.config(func(ctx context.Context, _ amqp.Delivery) error {
		close(entered)
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return fmt.Errorf("query: %w", ctx.Err())
	})
	cfg.Prefetch, cfg.ShutdownTimeout = 2, 200*time.Millisecond
	l := start(t, cfg)
	waitFor(t, "handler", entered)
	r.held(2)
	require.NoError(t, l.stop())
	require.ErrorIs(t, <-cause, errGrace)
	require.Empty(t, r.drainQueue(r.dlq))
	rest := r.drainQueue(r.queue)
	require.Len(t, rest, 2)
	for _, d := range rest {
		require.Equal(t, int64(1), returns(d))
	}
	require.Equal(t, Stats{Returned: 2}, l.Stats())
}

func TestAbandonedHandlersAreCounted(t *testing.T) {
	r := newRig(t, nil)
	r.publish(0, 3)
	release, entered := make(chan struct{}), make(chan struct{}, 3)
	var left atomic.Int64
	cfg := r.config(func(_ context.Context, d amqp.Delivery) error {
		entered <- struct{}{}
		if d.MessageId != "1" {
			<-release
			left.Add(1)
		}
		return nil
	})
	cfg.Concurrency, cfg.ShutdownTimeout, cfg.AbandonAfter = 3, 300*time.Millisecond, 300*time.Millisecond
	l := start(t, cfg)
	for range 3 {
		waitFor(t, "handler", entered)
	}
	r.eventually(func() bool { return l.Stats().Handled == 1 }, "one of them is done")
	began := time.Now()
	err := l.stop()
	require.Less(t, time.Since(began), 3*time.Second)
	var abandoned *Abandoned
	require.ErrorAs(t, err, &abandoned)
	require.Equal(t, 2, abandoned.Count)
	r.eventually(func() bool { return r.broker.Queue(t, r.queue).Ready == 2 }, "their messages are back")
	close(release)
	r.eventually(func() bool { return left.Load() == 2 && l.Stats().Stale == 2 }, "stale settles")
	require.Len(t, r.drainQueue(r.queue), 2, "a late settle took none")
}

// The driver's synchronous calls hang on a frozen link: Run ends all the same, and says that it has no proof.
func TestFrozenBrokerDoesNotHoldUpTheEnd(t *testing.T) {
	r := newRig(t, nil)
	proxy := testenv.Proxy(t, r.broker.URL())
	r.link = newLink(t, proxy.URL())
	r.publish(0, 1)
	entered := make(chan struct{})
	cfg := r.config(func(context.Context, amqp.Delivery) error {
		proxy.Freeze()
		close(entered)
		return nil
	})
	cfg.Prefetch, cfg.ShutdownTimeout, cfg.AbandonAfter = 5, time.Second, 500*time.Millisecond
	l := start(t, cfg)
	waitFor(t, "handler", entered)
	began := time.Now()
	err := l.stop()
	took := time.Since(began)
	require.ErrorIs(t, err, errHung)
	require.GreaterOrEqual(t, took, 1500*time.Millisecond)
	require.Less(t, took, 4500*time.Millisecond, "three times that")
	proxy.Heal()
}

// ordered queue: one consumer active, the others wait.
func newOrderedRig(t *testing.T) *rig { return newRig(t, amqp.Table{"x-single-active-consumer": true}) }

// The active consumer stops while it holds more than it has started: the next instance goes on where it left off.
func TestOrderedHandOver(t *testing.T) {
	const n = 60
	r := newOrderedRig(t)
	var seen record
	third, stopping := make(chan struct{}), make(chan struct{})
	h := func(_ context.Context, d amqp.Delivery) error {
		if seen.add(d) == n/3 {
			close(third)
			<-stopping
		}
		time.Sleep(10 * time.Millisecond) // a handler's work: the rest is much more than it takes to notice the stop
		return nil
	}
	cfg := r.config(h)
	cfg.Ordered, cfg.Prefetch = true, 10
	first := start(t, cfg).waitReady()
	second := start(t, cfg).waitReady()
	r.publish(0, n)
	waitFor(t, "third", third)
	first.cancel()
	close(stopping)
	require.NoError(t, first.wait(long))
	r.empty(0)
	require.NoError(t, second.stop())
	require.Equal(t, ids(0, n), seen.all(), "in order, each once")
	require.Positive(t, second.Stats().Handled)
}

func TestOrderedPause(t *testing.T) {
	const n = 30
	r := newOrderedRig(t)
	r.publish(0, n)
	var seen record
	cfg := r.config(func(_ context.Context, d amqp.Delivery) error {
		seen.add(d)
		time.Sleep(2 * time.Millisecond) // a handler's work
		return nil
	})
	cfg.Ordered, cfg.Prefetch = true, 5
	l := start(t, cfg)
	r.eventually(func() bool { return seen.len() > 3 }, "some")
	l.Pause()
	r.eventually(func() bool { return len(consumers(r)) == 0 }, "no consumer")
	l.Resume()
	r.eventually(func() bool { return len(consumers(r)) == 1 }, "consumes again")
	l.Pause() // to the end of the line: never unnoticed
	l.Resume()
	r.eventually(func() bool { return r.link.channels() == 3 }, "on a new channel")
	r.empty(0)
	require.NoError(t, l.stop())
	require.Equal(t, ids(0, n), seen.all())
}

// Several workers on one ordered queue are stopped together: each takes over from the last for a moment, which must not use up
// the messages' attempts.
func TestOrderedStopOfManyWorkers(t *testing.T) {
	r := newOrderedRig(t)
	r.publish(0, 20)
	entered := make(chan struct{}, 100)
	cfg := r.config(func(context.Context, amqp.Delivery) error {
		entered <- struct{}{}
		time.Sleep(50 * time.Millisecond) // a handler's work
		return nil
	})
	cfg.Ordered, cfg.Prefetch, cfg.Concurrency = true, 5, 10
	l := start(t, cfg)
	waitFor(t, "handler", entered)
	require.NoError(t, l.stop())
	for _, d := range r.drainQueue(r.queue) {
		require.LessOrEqual(t, returns(d), int64(2))
	}
	require.Empty(t, r.drainQueue(r.dlq))
}
