package consume

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

func TestNotNowWaitsInPlace(t *testing.T) {
	for _, slow := range []bool{false, true} {
		r := newRig(t, nil)
		r.publish(0, 10)
		var seen record
		var counts []int64
		cfg := r.config(func(_ context.Context, d amqp.Delivery) error {
			n := seen.add(d)
			if d.MessageId != "3" {
				return nil
			}
			if counts = append(counts, returns(d)); n < 6 {
				return busy{100 * time.Millisecond}
			}
			return nil
		})
		cfg.Prefetch, cfg.SlowStart = 5, slow
		began := time.Now()
		l := start(t, cfg)
		r.empty(0)
		require.NoError(t, l.stop())
		require.GreaterOrEqual(t, time.Since(began), 200*time.Millisecond)
		require.Equal(t, []string{"0", "1", "2", "3", "3", "3", "4", "5", "6", "7", "8", "9"}, seen.all())
		require.Equal(t, []int64{counts[0], counts[0], counts[0]}, counts, "it did not rise")
		require.Equal(t, Stats{Handled: 10, NotNow: 2}, l.Stats())
		states := r.link.state("worker")
		require.Equal(t, "consuming: ", states[len(states)-1])
		require.Equal(t, "waiting: not now (try 2, again in 100ms): busy", states[len(states)-2])
		require.Equal(t, 1, r.link.channels())
	}
}

// A message that is there before the worker, and whose handler asks for a wait at once: the wait is the last word, however
// close it comes after the beginning.
func TestNotNowAtOnceIsShown(t *testing.T) {
	r := newRig(t, nil)
	r.publish(0, 1)
	cfg := r.config(func(context.Context, amqp.Delivery) error { return busy{time.Hour} })
	for range 15 {
		l := start(t, cfg).waitReady()
		r.eventually(func() bool { return strings.HasPrefix(r.link.latest("worker"), "waiting: ") }, "the state says that it waits")
		require.NoError(t, l.stop())
	}
}

func TestNotNowIsHandedBackAtShutdown(t *testing.T) {
	r := newRig(t, nil)
	r.publish(0, 3)
	told := make(chan struct{}, 10)
	cfg := r.config(func(context.Context, amqp.Delivery) error {
		told <- struct{}{}
		return busy{time.Hour}
	})
	cfg.Prefetch = 3
	l := start(t, cfg)
	waitFor(t, "handler", told)
	began := time.Now()
	require.NoError(t, l.stop())
	require.Less(t, time.Since(began), 3*time.Second)
	rest := r.drainQueue(r.queue)
	require.Len(t, rest, 3)
	for _, d := range rest {
		require.Equal(t, int64(1), returns(d))
	}
}

// A message is kept no longer than the consumer timeout allows. Then all the worker holds is handed back, once, and from then on one
// message at a time.
func TestNotNowIsBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.publish(0, 8)
	var mu sync.Mutex
	count := map[string]int64{}
	var up atomic.Bool
	cfg := r.config(func(_ context.Context, d amqp.Delivery) error {
		mu.Lock()
		count[d.MessageId] = max(count[d.MessageId], returns(d))
		mu.Unlock()
		if up.Load() || d.MessageId < "4" && returns(d) == 0 { // the prefetch grows to 4
			return nil
		}
		return busy{50 * time.Millisecond}
	})
	cfg.Prefetch, cfg.SlowStart, cfg.ConsumerTimeout = 4, true, 2400*time.Millisecond // kept for 2 s
	l := start(t, cfg)
	r.eventually(func() bool { return l.Stats().Returned >= 4 }, "handed back")
	r.eventually(func() bool { return r.broker.Queue(t, r.queue).Unacked == 1 }, "prefetch 1")
	returned := l.Stats().Returned
	r.eventually(func() bool { return l.Stats().Returned > returned }, "again")
	up.Store(true)
	r.empty(0)
	require.NoError(t, l.stop())
	require.Equal(t, 1, r.link.channels(), "the broker closed none")
	mu.Lock()
	defer mu.Unlock()
	for id, n := range count {
		require.LessOrEqual(t, n, int64(3), id)
	}
}

// A dead database is asked by one worker at a time, and all go on once it answers.
func TestOneAtATimeAfterThree(t *testing.T) {
	const n = 40
	r := newRig(t, nil)
	r.publish(0, n)
	var late, most, calls atomic.Int64
	var up atomic.Bool
	cfg := r.config(func(context.Context, amqp.Delivery) error {
		if calls.Add(1) > 20 && !up.Load() { // all were let in after three refusals; who was before, and is slow to leave, does not count
			raise(&most, late.Add(1))
			defer late.Add(-1)
		}
		time.Sleep(2 * time.Millisecond) // a database's time
		if up.Load() {
			return nil
		}
		return busy{20 * time.Millisecond}
	})
	cfg.Concurrency, cfg.Prefetch = 10, 2
	l := start(t, cfg)
	r.eventually(func() bool { return calls.Load() > 100 }, "it keeps asking")
	all := func(says string) func() bool {
		return func() bool {
			for i := range 10 {
				if !strings.Contains(r.link.latest(l.workerName(i)), says) {
					return false
				}
			}
			return true
		}
	}
	r.eventually(all("one message at a time until one succeeds"), "each says what it waits for")
	require.EqualValues(t, 1, most.Load())
	up.Store(true)
	r.empty(0)
	r.eventually(all("consuming: "), "each goes on") // which the last of them says after its message is settled
	require.NoError(t, l.stop())
	require.EqualValues(t, n, l.Stats().Handled)
	require.Zero(t, l.Stats().Returned)
}

// Where order matters, a message at the bound takes the whole channel back with it.
func TestOrderedNotNowIsBounded(t *testing.T) {
	t.Parallel()
	r := newOrderedRig(t)
	r.publish(0, 6)
	var seen record
	cfg := r.config(func(_ context.Context, d amqp.Delivery) error {
		if d.MessageId == "2" && returns(d) == 0 {
			return busy{50 * time.Millisecond}
		}
		seen.add(d)
		return nil
	})
	cfg.Ordered, cfg.Prefetch, cfg.ConsumerTimeout = true, 3, 2400*time.Millisecond // kept for 2 s, which is long for the others
	l := start(t, cfg)
	r.empty(0)
	require.NoError(t, l.stop())
	require.Equal(t, ids(0, 6), seen.all())
	require.Equal(t, 2, r.link.channels())
}

// All who waited for an outage to end go on at the same moment, and yet not faster than they may.
func TestPerSecondAfterAnOutage(t *testing.T) {
	t.Parallel()
	const n, rate, interval = 30, 20, 50 * time.Millisecond
	r := newRig(t, nil)
	r.publish(0, n)
	var mu sync.Mutex
	var starts []time.Time
	var up atomic.Bool
	var calls atomic.Int64
	cfg := r.config(func(context.Context, amqp.Delivery) error {
		mu.Lock()
		starts = append(starts, time.Now())
		mu.Unlock()
		calls.Add(1)
		if up.Load() {
			return nil
		}
		time.Sleep(4 * interval) // an outage's time: the others wait for this one, not for the rate
		return busy{10 * time.Millisecond}
	})
	cfg.Concurrency, cfg.PerSecond = 10, rate
	l := start(t, cfg)
	r.eventually(func() bool { return calls.Load() > 20 }, "it keeps asking")
	r.eventually(func() bool {
		for i := range 10 {
			if !strings.Contains(r.link.latest(l.workerName(i)), "one message at a time until one succeeds") {
				return false
			}
		}
		return true
	}, "all wait")
	mu.Lock()
	began, before := time.Now(), len(starts)
	mu.Unlock()
	up.Store(true)
	r.empty(0)
	require.NoError(t, l.stop())
	// A start is seen later than it was allowed, by as much as the machine pauses, and then several are seen at once: so each is compared with
	// the end of the outage. The first may have been allowed before that.
	for i, at := range starts[before:] {
		require.GreaterOrEqual(t, at.Sub(began), time.Duration(i-1)*interval-slack, "start %d after the outage", i+1)
	}
}
