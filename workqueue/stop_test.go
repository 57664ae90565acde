package workqueue_test

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
	"github.com/warrenmq/warren/workqueue"
)

// burst is a queue of n messages of which every failing-th handled fails, and whose Worker is stopped with the last-th.
type burst struct {
	*setup
	n, failing, last int
	handled          *runs
	count, failed    atomic.Int64
	stop             context.CancelFunc
}

func newBurst(t *testing.T, q workqueue.Queue, n, failing, last int) (*burst, context.Context) {
	b := &burst{setup: newSetup(t, q), n: n, failing: failing, last: last, handled: newRuns()}
	b.publish(n)
	var ctx context.Context
	ctx, b.stop = context.WithCancel(t.Context())
	return b, ctx
}

// handle is the handler, of one message.
func (b *burst) handle(_ context.Context, d amqp.Delivery) error {
	b.handled.add(d)
	i := int(b.count.Add(1))
	if i >= b.last {
		b.stop()
	}
	if i%b.failing != 0 {
		return nil
	}
	b.failed.Add(1)
	return errors.New("a handler that fails")
}

// over checks that nothing that was handled comes again, and that what failed is dead-lettered once.
func (b *burst) over() {
	b.t.Helper()
	require.Equal(b.t, 1, b.handled.most(), "runs of one message")
	left := b.n - b.handled.total()
	testenv.Eventually(b.t, patience, func() bool { return b.broker.Queue(b.t, b.queue.Name).Unacked == 0 }, "the channels are gone")
	require.Equal(b.t, left, b.depth(b.queue.Name), "%d of %d were handled; what is more than the rest would come again", b.handled.total(), b.n)
	b.deadLettered(int(b.failed.Load()))
	again := b.start(b.conn, func(_ context.Context, d amqp.Delivery) error { b.handled.add(d); return nil }, workqueue.WorkerConfig{Prefetch: 100})
	b.settled()
	require.NoError(b.t, again())
	require.Equal(b.t, b.n, b.handled.distinct())
	require.Equal(b.t, 1, b.handled.most(), "runs of one message")
	b.deadLettered(int(b.failed.Load()))
}

// A graceful stop at the end of a burst, and in the middle of one: no message whose handler has finished comes again, whatever it
// returned.
func TestNothingComesAgainAfterAStopInABurst(t *testing.T) {
	t.Parallel()
	const n = 4000
	for name, failing := range map[string]int{"all fail": 1, "every other fails": 2, "every third fails": 3} {
		for when, last := range map[string]int{"at the end": n, "in the middle": n / 2} {
			t.Run(name+" "+when, func(t *testing.T) {
				b, ctx := newBurst(t, workqueue.Queue{}, n, failing, last)
				w, err := workqueue.NewWorker(b.conn, b.queue, b.handle, workqueue.WorkerConfig{Concurrency: 8, Prefetch: 300})
				require.NoError(t, err)
				require.NoError(t, w.Run(ctx))
				b.over()
			})
		}
	}
}

// In a batch that is running when the stop comes every other message fails.
func TestNothingComesAgainAfterAStopInABatch(t *testing.T) {
	t.Parallel()
	const n, size = 2000, 300
	b, ctx := newBurst(t, workqueue.Queue{}, n, 2, n/2)
	h := func(ctx context.Context, ds []amqp.Delivery) error {
		errs := make(reconnect.BatchError, len(ds))
		for i, d := range ds {
			errs[i] = b.handle(ctx, d)
		}
		if ctx := within(t, time.Second); len(ds) > 100 && b.count.Load() >= n/2 {
			_ = work(ctx, 100*time.Millisecond) // the consumer is cancelled meanwhile
		}
		return errs
	}
	w, err := workqueue.NewBatchWorker(b.conn, b.queue, h, workqueue.WorkerConfig{Concurrency: 2, BatchSize: size})
	require.NoError(t, err)
	require.NoError(t, w.Run(ctx))
	b.over()
}

// A queue with a single active consumer keeps its order, too.
func TestNothingComesAgainAfterAStopInOrder(t *testing.T) {
	t.Parallel()
	const n = 1000
	for when, last := range map[string]int{"at the end": n, "in the middle": n / 2} {
		t.Run(when, func(t *testing.T) {
			b, ctx := newBurst(t, workqueue.Queue{SingleActiveConsumer: true}, n, 2, last)
			w, err := workqueue.NewWorker(b.conn, b.queue, b.handle, workqueue.WorkerConfig{Prefetch: 300})
			require.NoError(t, err)
			require.NoError(t, w.Run(ctx))
			b.over()
			require.Equal(t, ids(n), b.handled.firsts())
		})
	}
}
