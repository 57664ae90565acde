package consume

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/report"
	"github.com/warrenmq/warren/internal/testenv"
)

func TestOrderAndOnce(t *testing.T) {
	for _, queueType := range []string{"quorum", "classic"} {
		for _, prefetch := range []int{1, 10, 100} {
			for _, slow := range []bool{false, true} {
				if slow && prefetch == 1 {
					continue
				}
				t.Run(fmt.Sprintf("%s/%d/slow=%v", queueType, prefetch, slow), func(t *testing.T) {
					const n = 2000
					r := newRig(t, amqp.Table{"x-queue-type": queueType})
					r.publish(0, n)
					var seen record
					var again atomic.Int64
					cfg := r.config(func(_ context.Context, d amqp.Delivery) error {
						seen.add(d)
						if d.Redelivered {
							again.Add(1)
						}
						return nil
					})
					cfg.Prefetch, cfg.SlowStart = prefetch, slow
					l := start(t, cfg)
					r.handles(&seen, n)
					if slow {
						require.Equal(t, prefetch, consumers(r)[0].Prefetch, "grown")
					}
					require.NoError(t, l.stop())
					require.Equal(t, ids(0, n), seen.all())
					if !slow { // a busy broker may return what was on its way when the consumer was replaced
						require.Zero(t, again.Load())
					}
					require.Equal(t, Stats{Handled: n}, l.Stats())
					r.empty(0)
					require.Equal(t, 1, r.link.channels())
				})
			}
		}
	}
}

func consumers(r *rig) []testenv.ConsumerInfo { return r.broker.Queue(r.tb, r.queue).Details }

// While handlers are slow enough to look, the broker never has more out than the prefetch, and at most one consumer per worker.
func TestPrefetchIsNeverExceeded(t *testing.T) {
	const n, prefetch = 150, 10
	r := newRig(t, nil)
	r.publish(0, n)
	var seen record
	cfg := r.config(func(_ context.Context, d amqp.Delivery) error {
		seen.add(d)
		time.Sleep(5 * time.Millisecond) // a handler's work
		return nil
	})
	cfg.Prefetch, cfg.SlowStart = prefetch, true
	l := start(t, cfg)
	most, prefetches := 0, map[int]bool{}
	r.eventually(func() bool {
		q := r.broker.Queue(t, r.queue)
		most = max(most, q.Unacked)
		require.LessOrEqual(t, q.Consumers, 1)
		for _, c := range q.Details {
			prefetches[c.Prefetch] = true
		}
		return seen.len() >= n
	}, "all handled")
	for _, c := range consumers(r) { // it had long grown, if no look fell into that time
		prefetches[c.Prefetch] = true
	}
	require.NoError(t, l.stop())
	require.LessOrEqual(t, most, prefetch)
	require.Equal(t, ids(0, n), seen.all())
	require.True(t, prefetches[prefetch], "grown to %d: %v", prefetch, prefetches)
}

func TestFailuresAreDeadLettered(t *testing.T) {
	r := newRig(t, nil)
	r.publish(0, 100)
	cfg := r.config(func(_ context.Context, d amqp.Delivery) error {
		switch d.MessageId {
		case "17":
			return errBad
		case "42":
			panic("boom")
		}
		return nil
	})
	cfg.Prefetch, cfg.SlowStart = 20, true
	l := start(t, cfg)
	r.empty(2)
	require.NoError(t, l.stop())
	require.Equal(t, Stats{Handled: 98, Failed: 2, Panics: 1}, l.Stats())
	dead := r.drainQueue(r.dlq)
	require.Equal(t, "17", dead[0].MessageId)
	require.Equal(t, "42", dead[1].MessageId)
	require.Equal(t, "rejected", dead[0].Headers["x-death"].([]any)[0].(amqp.Table)["reason"])
}

func TestTooLargeIsDeadLetteredUndecoded(t *testing.T) {
	r := newRig(t, nil)
	r.publish(99, 3) // 99, 100, 101
	var seen record
	cfg := r.config(seen.handler)
	cfg.MaxBody = 2
	l := start(t, cfg)
	r.empty(2)
	require.NoError(t, l.stop())
	require.Equal(t, []string{"99"}, seen.all())
}

func TestGoexitIsAFailure(t *testing.T) {
	r := newRig(t, nil)
	r.publish(0, 3)
	var seen record
	cfg := r.config(func(_ context.Context, d amqp.Delivery) error {
		if seen.add(d); d.MessageId == "1" {
			(&testing.T{}).SkipNow()
		}
		return nil
	})
	l := start(t, cfg)
	r.empty(1)
	require.NoError(t, l.stop())
	require.Equal(t, ids(0, 3), seen.all())
	require.Equal(t, 1, r.link.channels())
}

// A classic queue's failures go to the dead-letter queue as a copy. When it cannot be stored, the message is kept, and
// the copy alone is tried again.
func TestDeadLetterCopy(t *testing.T) {
	r := newRig(t, amqp.Table{"x-queue-type": "classic"})
	r.publish(0, 2)
	var seen record
	var tries atomic.Int64
	cfg := r.config(func(_ context.Context, d amqp.Delivery) error {
		if seen.add(d); d.MessageId == "0" {
			return errBad
		}
		return nil
	})
	cfg.DeadLetter = func(_ context.Context, d amqp.Delivery, cause error) error {
		require.ErrorIs(t, cause, errBad)
		require.Equal(t, "0", d.MessageId)
		if tries.Add(1) < 3 {
			return busy{50 * time.Millisecond}
		}
		return nil
	}
	l := start(t, cfg)
	r.empty(0) // the copy is not sent by this test
	require.NoError(t, l.stop())
	require.Equal(t, ids(0, 2), seen.all())
	require.EqualValues(t, 3, tries.Load())
	require.Equal(t, Stats{Handled: 1, Failed: 1, NotNow: 2}, l.Stats())
}

func TestHandSettlesAreHarmless(t *testing.T) {
	const n = 200
	r := newRig(t, nil)
	r.publish(0, n)
	var refused atomic.Int64
	cfg := r.config(func(_ context.Context, d amqp.Delivery) error {
		for _, err := range []error{d.Ack(true), d.Nack(true, true), d.Reject(false)} {
			if err != nil {
				refused.Add(1)
			}
		}
		return nil
	})
	cfg.Prefetch, cfg.Concurrency = 10, 4
	l := start(t, cfg)
	r.empty(0)
	require.NoError(t, l.stop())
	require.EqualValues(t, 3*n, refused.Load())
	require.Equal(t, Stats{Handled: n, HandSettle: 3 * n}, l.Stats())
	require.Equal(t, 4, r.link.channels(), "no channel was lost")
}

func TestManyWorkers(t *testing.T) {
	const n = 1000
	r := newRig(t, nil)
	r.publish(0, n)
	var seen record
	cfg := r.config(seen.handler)
	cfg.Concurrency, cfg.Prefetch, cfg.SlowStart = 8, 16, true
	l := start(t, cfg).waitReady()
	r.eventually(func() bool { return seen.len() >= n }, "all handled")
	r.eventually(func() bool { return len(consumers(r)) == 8 }, "one consumer per worker")
	require.NoError(t, l.stop())
	require.ElementsMatch(t, ids(0, n), seen.all())
	r.empty(0)
	require.Equal(t, []string{report.Consuming + ": "}, r.link.state("worker/3"))
}

func TestPauseAndResume(t *testing.T) {
	r := newRig(t, nil)
	var seen record
	entered, leave := make(chan struct{}), make(chan struct{})
	cfg := r.config(func(_ context.Context, d amqp.Delivery) error {
		if seen.add(d) == 1 {
			close(entered)
			<-leave
		}
		return nil
	})
	cfg.Prefetch = 10
	l := start(t, cfg).waitReady()
	r.publish(0, 10)
	waitFor(t, "handler", entered)
	r.held(10)
	l.Pause()
	r.eventually(func() bool {
		q := r.broker.Queue(t, r.queue)
		return q.Consumers == 0 && q.Ready == 9 && q.Unacked == 1
	}, "all but the started one handed back")
	close(leave)
	r.eventually(func() bool { return r.broker.Queue(t, r.queue).Unacked == 0 }, "the started one is settled")
	r.eventually(func() bool { return slices.Equal([]string{"consuming: ", "paused: "}, r.link.state("worker")) }, // said a moment later
		"the state says so")
	l.Resume()
	r.empty(0)
	require.NoError(t, l.stop())
	require.Equal(t, ids(0, 10), seen.all())
	require.Equal(t, 1, r.link.channels(), "the channel is kept")
	require.EqualValues(t, 9, l.Stats().Returned)
}

func TestPausedFromTheStart(t *testing.T) {
	r := newRig(t, nil)
	r.publish(0, 3)
	var seen record
	l, err := New(r.config(seen.handler))
	require.NoError(t, err)
	l.Pause()
	run := startLoop(t, l)
	r.eventually(func() bool { return len(r.link.state("worker")) > 0 }, "a state")
	require.Equal(t, []string{"paused: "}, r.link.state("worker"))
	require.Empty(t, consumers(r))
	select {
	case <-l.Ready():
		require.Fail(t, "ready while paused")
	default:
	}
	l.Resume()
	run.waitReady()
	r.empty(0)
	require.NoError(t, run.stop())
	require.Equal(t, ids(0, 3), seen.all())
}

func TestPerSecond(t *testing.T) {
	r := newRig(t, nil)
	r.publish(0, 30)
	var seen record
	cfg := r.config(seen.handler)
	cfg.PerSecond, cfg.Concurrency, cfg.Prefetch = 20, 3, 5
	began := time.Now()
	l := start(t, cfg)
	r.eventually(func() bool { return seen.len() >= 30 }, "all handled")
	took := time.Since(began)
	require.NoError(t, l.stop())
	require.GreaterOrEqual(t, took, 29*time.Second/20)
	require.Less(t, took, 6*time.Second) // four times that: each pause of the machine delays all that follow it
	r.empty(0)
}

func TestPerSecondDoesNotHoldUpTheEnd(t *testing.T) {
	r := newRig(t, nil)
	r.publish(0, 5)
	var seen record
	cfg := r.config(seen.handler)
	cfg.PerSecond, cfg.Prefetch = 0.01, 5
	l := start(t, cfg)
	r.eventually(func() bool { return seen.len() == 1 }, "the first")
	began := time.Now()
	require.NoError(t, l.stop())
	require.Less(t, time.Since(began), 3*time.Second)
	r.eventually(func() bool { return r.broker.Queue(t, r.queue).Ready == 4 }, "the others are back")
	require.Equal(t, int64(1), returns(r.drainQueue(r.queue)[0]))
}

func TestRunTwice(t *testing.T) {
	r := newRig(t, nil)
	var seen record
	l := start(t, r.config(seen.handler)).waitReady()
	require.ErrorContains(t, l.Run(context.Background()), "running already")
	require.NoError(t, l.stop())
	again := startLoop(t, l.Loop).waitReady()
	r.publish(0, 1)
	r.empty(0)
	require.NoError(t, again.stop())
	require.Equal(t, 1, seen.len())
}

type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

func (permanent) Permanent() bool { return true }

// What cannot be mended for one worker stops the others, which drain.
func TestPermanentErrorStopsAll(t *testing.T) {
	r := newRig(t, nil)
	r.publish(0, 1)
	entered, fail := make(chan struct{}), make(chan struct{})
	cfg := r.config(func(context.Context, amqp.Delivery) error {
		close(entered)
		time.Sleep(200 * time.Millisecond) // a handler's work
		return nil
	})
	cfg.Concurrency = 3
	cfg.Supervise = func(ctx context.Context, name string, fn func(context.Context, *amqp.Channel) error) error {
		if strings.HasSuffix(name, "/2") {
			<-fail
			return permanent{errBad}
		}
		return r.link.Supervise(ctx, name, fn)
	}
	l := start(t, cfg)
	waitFor(t, "handler", entered)
	close(fail)
	require.ErrorIs(t, l.wait(long), errBad)
	require.EqualValues(t, 1, l.Stats().Handled)
	r.empty(0)
}

func TestQueueOf(t *testing.T) {
	_, ok := QueueOf(t.Context())
	require.False(t, ok)
	require.False(t, Ordered(t.Context()))
	r := newRig(t, nil)
	r.publish(0, 1)
	got := make(chan string, 1)
	cfg := r.config(func(ctx context.Context, _ amqp.Delivery) error {
		q, _ := QueueOf(ctx)
		got <- fmt.Sprint(q, Ordered(ctx))
		return nil
	})
	cfg.Ordered = true
	l := start(t, cfg)
	r.empty(0)
	require.NoError(t, l.stop())
	require.Equal(t, r.queue+"true", <-got)
}
