package consume

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// cost is what a number of messages took.
type cost struct {
	wall, cpu time.Duration
	allocs    float64 // a message
}

func measure(n int, fn func()) cost {
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu, began := cpuTime(), time.Now()
	fn()
	c := cost{wall: time.Since(began), cpu: cpuTime() - cpu}
	runtime.ReadMemStats(&after)
	c.allocs = float64(after.Mallocs-before.Mallocs) / float64(n)
	return c
}

// cpuTime is the user and system time of this process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// consumeRaw takes n messages with the driver used by hand: each is acknowledged by itself.
func consumeRaw(r *rig, n, prefetch, workers int) cost {
	conn := r.broker.Dial(r.tb)
	defer conn.Close()
	ch, err := conn.Channel()
	require.NoError(r.tb, err)
	require.NoError(r.tb, ch.Qos(prefetch, 0, false))
	c := measure(n, func() {
		in, err := ch.Consume(r.queue, "raw", false, false, false, false, nil)
		require.NoError(r.tb, err)
		var wg sync.WaitGroup
		for w := range workers {
			share := n / workers
			if w == 0 {
				share += n % workers
			}
			wg.Go(func() {
				for range share {
					d := <-in
					_ = d.Ack(false)
				}
			})
		}
		wg.Wait()
	})
	require.NoError(r.tb, ch.Close())
	return c
}

// consumeLoop takes n messages with a Loop.
func consumeLoop(r *rig, n, prefetch, workers int, slow bool) cost {
	var mu sync.Mutex
	left, done := n, make(chan struct{})
	cfg := r.config(func(context.Context, amqp.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		if left--; left == 0 {
			close(done)
		}
		return nil
	})
	cfg.Prefetch, cfg.Concurrency, cfg.SlowStart = prefetch, workers, slow
	cfg.Supervise = newLink(r.tb, r.broker.URL()).Supervise
	var l *run
	c := measure(n, func() {
		l = start(r.tb, cfg)
		waitFor(r.tb, "last message", done)
	})
	require.NoError(r.tb, l.stop())
	return c
}

// BenchmarkConsume runs the driver used by hand and the loop in turn and prints the median ratios.
func BenchmarkConsume(b *testing.B) {
	for _, queueType := range []string{"quorum", "classic"} {
		for _, c := range []struct {
			workers int
			slow    bool
		}{{1, false}, {1, true}, {16, false}} {
			workers := c.workers
			b.Run(fmt.Sprintf("%s/workers=%d/slow=%v", queueType, workers, c.slow), func(b *testing.B) {
				const n, prefetch = 20000, 100
				var rate, cpu, raw, ours []float64
				for i := range 2*b.N + 5 {
					r := newRig(b, amqp.Table{"x-queue-type": queueType})
					r.publish(0, 2*n+5000) // a Loop goes on for a moment after the last it should
					var x, y cost
					if i%2 == 0 {
						x, y = consumeRaw(r, n, prefetch, workers), consumeLoop(r, n, prefetch, workers, c.slow)
					} else {
						y, x = consumeLoop(r, n, prefetch, workers, c.slow), consumeRaw(r, n, prefetch, workers)
					}
					rate = append(rate, float64(x.wall)/float64(y.wall))
					cpu = append(cpu, float64(y.cpu)/float64(x.cpu))
					raw, ours = append(raw, x.allocs), append(ours, y.allocs)
				}
				b.ReportMetric(median(rate), "rate/raw")
				b.ReportMetric(median(cpu), "cpu/raw")
				b.ReportMetric(median(raw), "allocs-raw")
				b.ReportMetric(median(ours), "allocs-loop")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}
