package reconnect

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// BenchmarkPublish compares a Publisher with the driver used well by hand (one confirm channel, shared by all callers, the
// same MessageId and Timestamp), in turn, and reports the medians of the pairs' ratios: rate, CPU of this process and
// allocations per message. b.N is of no meaning: run it with -benchtime=1x.
func BenchmarkPublish(b *testing.B) {
	for _, kind := range []string{amqp.QueueTypeClassic, amqp.QueueTypeQuorum} {
		for _, size := range []int{256, 4096} {
			for _, callers := range []int{1, 16, 128} {
				b.Run(fmt.Sprintf("%s/%dB/%d callers", kind, size, callers), func(b *testing.B) {
					newPublishBench(b, kind, size).compare(b, callers)
				})
			}
			b.Run(fmt.Sprintf("%s/%dB/batch", kind, size), func(b *testing.B) {
				newPublishBench(b, kind, size).compareBatch(b)
			})
		}
	}
}

const (
	benchPairs = 7
	benchFor   = 500 * time.Millisecond
)

type publishBench struct {
	raw   *amqp.Connection
	p     *Publisher
	queue string
	body  []byte
}

func newPublishBench(b *testing.B, kind string, size int) *publishBench {
	broker := testenv.Shared(b)
	pb := &publishBench{raw: broker.Dial(b), queue: testenv.Name(b, "bench"), body: make([]byte, size)}
	ch, err := pb.raw.Channel()
	require.NoError(b, err)
	_, err = ch.QueueDeclare(pb.queue, true, false, false, false, amqp.Table{amqp.QueueTypeArg: kind, "x-max-length": 1000})
	require.NoError(b, err)
	b.Cleanup(func() { broker.DeleteQueue(b, pb.queue) })
	conn, err := Dial(b.Context(), broker.URL(), Config{Logger: testenv.Logger(io.Discard)})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, conn.Close(context.Background())) })
	pb.p, err = conn.NewPublisher(PublisherConfig{})
	require.NoError(b, err)
	return pb
}

// figures are what one run cost per message.
type figures struct{ rate, cpu, allocs float64 }

// run calls publish from so many callers for a while.
func run(callers int, publish func() int) figures {
	runtime.GC()
	var before, after runtime.MemStats
	var n atomic.Int64
	var wg sync.WaitGroup
	runtime.ReadMemStats(&before)
	cpu, began := cpuTime(), time.Now()
	for range callers {
		wg.Go(func() {
			for time.Since(began) < benchFor {
				n.Add(int64(publish()))
			}
		})
	}
	wg.Wait()
	took, used := time.Since(began), cpuTime()-cpu
	runtime.ReadMemStats(&after)
	count := float64(n.Load())
	return figures{count / took.Seconds(), float64(used) / count, float64(after.Mallocs-before.Mallocs) / count}
}

func cpuTime() time.Duration {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func (pb *publishBench) compare(b *testing.B, callers int) {
	ch := pb.confirms(b)
	var mu sync.Mutex
	pb.pairs(b, callers, func() int {
		now := time.Now()
		mu.Lock()
		confirm, err := ch.PublishWithDeferredConfirm("", pb.queue, true, false, pb.message(now))
		mu.Unlock()
		if err != nil || !confirm.Wait() {
			b.Error("raw: not confirmed", err)
		}
		return 1
	}, func() int {
		if err := pb.p.Publish(context.Background(), "", pb.queue, amqp.Publishing{Body: pb.body}); err != nil {
			b.Error("ours:", err)
		}
		return 1
	})
}

func (pb *publishBench) compareBatch(b *testing.B) {
	ch := pb.confirms(b)
	window := make([]*amqp.DeferredConfirmation, 0, 256)
	batch := make([]Message, 5000)
	for i := range batch {
		batch[i] = Message{Key: pb.queue, Publishing: amqp.Publishing{Body: pb.body}}
	}
	pb.pairs(b, 1, func() int {
		for range len(batch) {
			if len(window) == cap(window) {
				if !window[0].Wait() {
					b.Error("raw: not confirmed")
				}
				window = append(window[:0], window[1:]...)
			}
			confirm, err := ch.PublishWithDeferredConfirm("", pb.queue, true, false, pb.message(time.Now()))
			if err != nil {
				b.Error("raw:", err)
			}
			window = append(window, confirm)
		}
		for _, confirm := range window {
			confirm.Wait()
		}
		window = window[:0]
		return len(batch)
	}, func() int {
		if err := pb.p.PublishBatch(context.Background(), batch); err != nil {
			b.Error("ours:", err)
		}
		return len(batch)
	})
}

func (pb *publishBench) confirms(b *testing.B) *amqp.Channel {
	ch, err := pb.raw.Channel()
	require.NoError(b, err)
	require.NoError(b, ch.Confirm(false))
	returns := ch.NotifyReturn(make(chan amqp.Return, 1000))
	b.Cleanup(func() { require.Empty(b, returns) })
	return ch
}

func (pb *publishBench) message(now time.Time) amqp.Publishing {
	return amqp.Publishing{MessageId: newMessageID(now), Timestamp: now, DeliveryMode: amqp.Persistent, Body: pb.body}
}

// pairs runs both in turn, a b, then b a, and reports the medians.
func (pb *publishBench) pairs(b *testing.B, callers int, raw, ours func() int) {
	ours() // opens its channel
	var rate, cpu, allocs, rawRate, ourAllocs []float64
	for i := range benchPairs {
		var r, o figures
		if i%2 == 0 {
			r = run(callers, raw)
			o = run(callers, ours)
		} else {
			o = run(callers, ours)
			r = run(callers, raw)
		}
		rate, cpu, allocs = append(rate, o.rate/r.rate), append(cpu, o.cpu/r.cpu), append(allocs, o.allocs-r.allocs)
		rawRate, ourAllocs = append(rawRate, r.rate), append(ourAllocs, o.allocs)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(rate), "rate/raw")
	b.ReportMetric(median(cpu), "cpu/raw")
	b.ReportMetric(median(allocs), "allocs-raw")
	b.ReportMetric(median(ourAllocs), "allocs/msg")
	b.ReportMetric(median(rawRate), "raw-msg/s")
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}
