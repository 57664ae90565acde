package consume

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// In a process that computes on all its processors a worker keeps up with the bare driver: no message waits for a time slice
// of its own. (It took more than thirty times as long when the worker yielded before it waited for a message.)
func TestSaturatedProcessors(t *testing.T) {
	const n = 200
	r := newRig(t, nil)
	r.publish(0, n)
	stop := saturate()
	defer stop()
	driver := byHand(t, r, n)
	stop()

	r.publish(0, n)
	handled, done := atomic.Int64{}, make(chan struct{})
	cfg := r.config(func(context.Context, amqp.Delivery) error {
		if handled.Add(1) == n {
			close(done)
		}
		return nil
	})
	cfg.Prefetch = 100
	stop = saturate()
	defer stop()
	began := time.Now()
	l := start(t, cfg)
	waitFor(t, "all messages", done)
	ours := time.Since(began)
	stop()
	require.NoError(t, l.stop())
	t.Logf("%d messages: ours %v, the driver by hand %v", n, ours, driver)
	require.LessOrEqual(t, ours, 3*driver+2*time.Second, "%d messages; the driver by hand took %v", n, driver)
}

// saturate has two goroutines for each processor compute until stop is called.
func saturate() (stop func()) {
	var over atomic.Bool
	var wg sync.WaitGroup
	for range 2 * runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for !over.Load() {
			}
		})
	}
	return func() { over.Store(true); wg.Wait() }
}

// byHand is how long the bare driver takes for n messages, each acknowledged by itself.
func byHand(t *testing.T, r *rig, n int) time.Duration {
	ch := r.channel()
	defer ch.Close()
	require.NoError(t, ch.Qos(100, 0, false))
	began := time.Now()
	in, err := ch.Consume(r.queue, "", false, false, false, false, nil)
	require.NoError(t, err)
	for range n {
		require.NoError(t, (<-in).Ack(false))
	}
	return time.Since(began)
}
