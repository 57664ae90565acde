package consume

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// answers gives every other message, from the second on, a failure.
func answers(ds []amqp.Delivery) []error {
	errs := make([]error, len(ds))
	for i := 1; i < len(ds); i += 2 {
		errs[i] = errBad
	}
	return errs
}

// onceOver checks what a stop left: the messages handled are gone from the queue, the failed ones are in the dead-letter queue
// once, and nothing else is lost. Up to RabbitMQ 4.2 what comes again says how often; nothing was returned more often than most.
func (r *rig) onceOver(n int, handled []string, failed int, most int64) {
	r.tb.Helper()
	rest := r.drainQueue(r.queue)
	all := append([]string(nil), handled...)
	for _, d := range rest {
		all = append(all, d.MessageId)
		require.LessOrEqual(r.tb, returns(d), most, "returns of %s", d.MessageId)
	}
	require.Equal(r.tb, n, len(all), "%d handled, %d still in the queue: what was handled comes again", len(handled), len(rest))
	require.ElementsMatch(r.tb, ids(0, n), all)
	r.eventually(func() bool { return r.broker.Queue(r.tb, r.dlq).Ready >= failed }, "%d dead-lettered", failed)
	require.Len(r.tb, r.drainQueue(r.dlq), failed)
}

// A batch that was running when the stop came, with more different answers than a channel may have under way when it is
// closed: none comes again.
func TestStopProvesTheAnswersOfABatch(t *testing.T) {
	const n, extra, workers = 300, 50, 3
	for _, behind := range []int{0, extra} { // what the queue still has
		r := newRig(t, nil)
		r.publish(0, workers*n+behind)
		var seen record
		ctx, stop := context.WithCancel(t.Context())
		var begun, failed atomic.Int64
		cfg := r.config(nil)
		cfg.Batch = func(_ context.Context, ds []amqp.Delivery) error {
			for _, d := range ds {
				seen.add(d)
			}
			if begun.Add(1) == workers {
				stop()
			}
			<-ctx.Done()
			r.eventually(func() bool { return len(consumers(r)) == 0 }, "the consumers are cancelled")
			errs := answers(ds)
			failed.Add(int64(len(ds) / 2))
			return each(errs)
		}
		cfg.BatchSize, cfg.Prefetch, cfg.Concurrency, cfg.BatchWait = n, n, workers, long
		cfg.ShutdownTimeout, cfg.Quorum = long, true
		l, err := New(cfg)
		require.NoError(t, err)
		require.NoError(t, l.Run(ctx))
		require.Equal(t, workers*n, seen.len())
		require.Zero(t, l.Stats().Stale)
		r.onceOver(workers*n+behind, seen.all(), int(failed.Load()), 1)
	}
}

// A stop in the middle of a burst of failures and successes: what was handled does not come again, the rest is handed back once.
func TestStopInABurstOfFailures(t *testing.T) {
	const n, prefetch = 1500, 300
	for name, failing := range map[string]int{"all fail": 1, "every other fails": 2} {
		for _, last := range []int{n, n / 2} {
			r := newRig(t, nil)
			r.publish(0, n)
			var seen record
			ctx, stop := context.WithCancel(t.Context())
			var failed atomic.Int64
			cfg := r.config(func(_ context.Context, d amqp.Delivery) error {
				i := seen.add(d)
				if i >= last {
					stop()
				}
				if i%failing != 0 {
					return nil
				}
				failed.Add(1)
				return errBad
			})
			cfg.Prefetch, cfg.SlowStart, cfg.Quorum = prefetch, true, true
			l, err := New(cfg)
			require.NoError(t, err)
			require.NoError(t, l.Run(ctx))
			require.Zero(t, l.Stats().Stale, name)
			r.onceOver(n, seen.all(), int(failed.Load()), 2)
			t.Logf("%s: stopped after %d of %d", name, seen.len(), n)
		}
	}
}

// What is handed back while a handler runs is many commands of its own, and the queue may be slow to carry them out: the handler's answer,
// behind them, arrives all the same.
func TestStopProvesTheLastAnswer(t *testing.T) {
	const prefetch = 300
	for failed, answer := range []error{nil, errBad} {
		r := newRig(t, nil)
		r.publish(0, prefetch)
		var l *Loop
		var seen record
		var resumed atomic.Bool
		answers := make(chan struct{})
		ctx, stop := context.WithCancel(t.Context())
		cfg := r.config(func(_ context.Context, d amqp.Delivery) error {
			r.held(prefetch)
			seen.add(d)
			stop()
			r.eventually(func() bool { return len(consumers(r)) == 0 }, "the consumer is cancelled")
			resume := r.broker.StallQueue(t, r.queue)
			time.AfterFunc(10*soon, func() { resumed.Store(true); resume(); close(answers) })
			r.eventually(func() bool { return l.Stats().Returned == prefetch-1 }, "the others are handed back")
			return answer
		})
		cfg.Prefetch, cfg.Quorum = prefetch, true
		var err error
		l, err = New(cfg)
		require.NoError(t, err)
		require.NoError(t, l.Run(ctx))
		require.True(t, resumed.Load(), "it has waited for the queue")
		waitFor(t, "end of the stall", answers)
		r.onceOver(prefetch, seen.all(), failed, 2)
	}
}

// An ordered worker never cancels: the close of its channel alone would not prove what it answered, one by one.
func TestOrderedStopProvesFailures(t *testing.T) {
	const n, prefetch = 600, 300
	for _, last := range []int{n, n / 2} {
		r := newOrderedRig(t)
		r.publish(0, n)
		var seen record
		failed := 0
		begin := make(chan struct{})
		ctx, stop := context.WithCancel(t.Context())
		cfg := r.config(func(_ context.Context, d amqp.Delivery) error {
			<-begin
			if seen.add(d) >= last {
				stop()
			}
			if seen.len()%2 == 1 {
				return nil
			}
			failed++
			return errBad
		})
		cfg.Ordered, cfg.Prefetch, cfg.Quorum = true, prefetch, true
		l, err := New(cfg)
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx) }()
		r.eventually(func() bool { return r.broker.Queue(t, r.queue).Unacked == prefetch }, "the prefetch is full")
		close(begin)
		require.NoError(t, <-done)
		require.Equal(t, ids(0, seen.len()), seen.all(), "in order, each once")
		r.onceOver(n, seen.all(), failed, 1)
	}
}

// The proofs of many workers, with messages ready in the queue, do not use up the attempts of the one at its head.
func TestProofsSpareTheHeadOfTheQueue(t *testing.T) {
	const workers, size = 12, 60
	r := newRig(t, nil)
	r.publish(0, workers*size+workers)
	var begun atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	cfg := r.config(nil)
	var seen record
	cfg.Batch = func(_ context.Context, ds []amqp.Delivery) error {
		for _, d := range ds {
			seen.add(d)
		}
		turn := begun.Add(1)
		if turn == workers {
			stop()
		}
		<-ctx.Done()
		r.eventually(func() bool { return len(consumers(r)) == 0 }, "the consumers are cancelled")
		time.Sleep(time.Duration(turn) * 20 * time.Millisecond) // one after the other
		return each(answers(ds))
	}
	cfg.BatchSize, cfg.Prefetch, cfg.Concurrency, cfg.BatchWait = size, size, workers, long
	cfg.ShutdownTimeout, cfg.Quorum = long, true
	l, err := New(cfg)
	require.NoError(t, err)
	require.NoError(t, l.Run(ctx))
	r.onceOver(workers*size+workers, seen.all(), workers*size/2, 2) // by a proof, and by a worker that it had just come to
}

// A proof that gets no answer does not hold up the end, which says that there is none.
func TestFrozenProof(t *testing.T) {
	t.Parallel()
	const size = 100
	r := newRig(t, nil)
	proxy := testenv.Proxy(t, r.broker.URL())
	r.link = newLink(t, proxy.URL())
	r.publish(0, size)
	ctx, stop := context.WithCancel(t.Context())
	cfg := r.config(nil)
	cfg.Batch = func(_ context.Context, ds []amqp.Delivery) error {
		stop()
		r.eventually(func() bool { return len(consumers(r)) == 0 }, "the consumer is cancelled")
		proxy.Freeze()
		return each(answers(ds))
	}
	cfg.BatchSize, cfg.Prefetch, cfg.BatchWait, cfg.Quorum = size, size, long, true
	cfg.ShutdownTimeout, cfg.AbandonAfter = 3*time.Second, 500*time.Millisecond
	l, err := New(cfg)
	require.NoError(t, err)
	require.ErrorIs(t, l.Run(ctx), errHung)
	proxy.Heal()
	r.eventually(func() bool { q := r.broker.Queue(t, r.queue); return q.Unacked == 0 }, "the broker has seen the end")
}
