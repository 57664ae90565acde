package rpc_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/rpc"
)

// BenchmarkCall compares a Client with the driver used by hand as tutorials have it (one channel, a mutex around register and
// publish, persistent requests; and the same with transient ones), in turn, and reports the medians of the pairs' ratios:
// rate, median latency, CPU of this process and allocations. The server is a process of its own, and the same for all.
// b.N is of no meaning: run it with -benchtime=1x.
func BenchmarkCall(b *testing.B) {
	for _, base := range []string{"persistent", "transient"} {
		for _, callers := range []int{1, 16, 128} {
			b.Run(fmt.Sprintf("beside article-%s/%d callers", base, callers), func(b *testing.B) {
				newCallBench(b, base == "persistent").compare(b, callers)
			})
		}
	}
}

const (
	benchPairs = 15
	benchFor   = 300 * time.Millisecond
	benchBody  = 256
)

type callBench struct {
	queue string
	raw   *rawCaller
	ours  *rpc.Client
	body  []byte
}

func newCallBench(b *testing.B, persistent bool) *callBench {
	broker := testenv.Shared(b)
	cb := &callBench{queue: testenv.Name(b, "bench"), body: make([]byte, benchBody)}
	ch, err := broker.Dial(b).Channel()
	require.NoError(b, err)
	_, err = ch.QueueDeclare(cb.queue, true, false, false, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeClassic})
	require.NoError(b, err)
	b.Cleanup(func() { broker.DeleteQueue(b, cb.queue) })
	serveElsewhere(b, broker.URL(), cb.queue)
	conn, err := reconnect.Dial(b.Context(), broker.URL(), reconnect.Config{Logger: quiet})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, conn.Close(context.Background())) })
	cb.ours, err = rpc.NewClient(conn, rpc.ClientConfig{})
	require.NoError(b, err)
	cb.raw = newRawCaller(b, broker, persistent)
	return cb
}

// rawCaller is a client as tutorials have it.
type rawCaller struct {
	ch      *amqp.Channel
	mode    uint8
	mu      sync.Mutex
	pending map[string]chan amqp.Delivery
}

func newRawCaller(b *testing.B, broker *testenv.Broker, persistent bool) *rawCaller {
	ch, err := broker.Dial(b).Channel()
	require.NoError(b, err)
	c := &rawCaller{ch: ch, mode: amqp.Transient, pending: map[string]chan amqp.Delivery{}}
	if persistent {
		c.mode = amqp.Persistent
	}
	replies, err := ch.Consume("amq.rabbitmq.reply-to", "", true, false, false, false, nil)
	require.NoError(b, err)
	go func() {
		for d := range replies {
			c.mu.Lock()
			reply := c.pending[d.CorrelationId]
			delete(c.pending, d.CorrelationId)
			c.mu.Unlock()
			if reply != nil {
				reply <- d
			}
		}
	}()
	return c
}

func (c *rawCaller) call(ctx context.Context, queue string, body []byte) error {
	id, reply := uuid.NewString(), make(chan amqp.Delivery, 1)
	c.mu.Lock()
	c.pending[id] = reply
	err := c.ch.PublishWithContext(ctx, "", queue, false, false, amqp.Publishing{
		ContentType: "application/json", CorrelationId: id, ReplyTo: "amq.rabbitmq.reply-to", DeliveryMode: c.mode, Body: body})
	c.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case <-reply:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (cb *callBench) compare(b *testing.B, callers int) {
	raw := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		return cb.raw.call(ctx, cb.queue, cb.body)
	}
	ours := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, err := cb.ours.Call(ctx, cb.queue, amqp.Publishing{ContentType: "application/json", Body: cb.body})
		return err
	}
	require.NoError(b, raw())
	require.NoError(b, ours())
	var rate, p50, cpu, rawAllocs, allocs, rawRate []float64
	for i := range benchPairs {
		var r, o callCost
		if i%2 == 0 {
			r, o = measure(b, callers, raw), measure(b, callers, ours)
		} else {
			o, r = measure(b, callers, ours), measure(b, callers, raw)
		}
		rate, p50, cpu = append(rate, o.rate/r.rate), append(p50, o.p50/r.p50), append(cpu, o.cpu/r.cpu)
		rawAllocs, allocs, rawRate = append(rawAllocs, r.allocs), append(allocs, o.allocs), append(rawRate, r.rate)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(rate), "rate/raw")
	b.ReportMetric(median(p50), "p50/raw")
	b.ReportMetric(median(cpu), "cpu/raw")
	b.ReportMetric(median(allocs), "allocs/call")
	b.ReportMetric(median(rawAllocs), "allocs-raw")
	b.ReportMetric(median(rawRate), "raw-calls/s")
}

// callCost is what a call cost in one run; cpu of this process.
type callCost struct{ rate, p50, cpu, allocs float64 }

func measure(b *testing.B, callers int, call func() error) callCost {
	runtime.GC()
	var before, after runtime.MemStats
	var n atomic.Int64
	var wg sync.WaitGroup
	times := make([][]float64, callers)
	for i := range times {
		times[i] = make([]float64, 0, 100_000)
	}
	runtime.ReadMemStats(&before)
	used, began := cpuTime(), time.Now()
	for i := range callers {
		wg.Go(func() {
			for at := time.Now(); at.Sub(began) < benchFor; {
				if err := call(); err != nil {
					b.Error(err)
					return
				}
				n.Add(1)
				now := time.Now()
				times[i] = append(times[i], float64(now.Sub(at)))
				at = now
			}
		})
	}
	wg.Wait()
	wall, cpu := time.Since(began), cpuTime()-used
	runtime.ReadMemStats(&after)
	count := float64(max(1, n.Load()))
	return callCost{count / wall.Seconds(), median(slices.Concat(times...)), float64(cpu) / count, float64(after.Mallocs-before.Mallocs) / count}
}

func cpuTime() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// elsewhereEnv makes this binary a server: "queue url".
const elsewhereEnv = "WARREN_RPC_BENCH_SERVER"

// serveElsewhere runs the server in a process of its own.
func serveElsewhere(b testing.TB, url, queue string) {
	program, err := os.Executable()
	require.NoError(b, err)
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), elsewhereEnv+"="+queue+" "+url)
	in, err := cmd.StdinPipe()
	require.NoError(b, err)
	cmd.Stderr = os.Stderr
	require.NoError(b, cmd.Start())
	b.Cleanup(func() {
		_ = in.Close() // which ends it
		require.NoError(b, cmd.Wait())
	})
}

// beElsewhere is that process: the least that a server can be.
func beElsewhere(arg string) error {
	queue, url, _ := strings.Cut(arg, " ")
	conn, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := ch.Qos(256, 0, false); err != nil {
		return err
	}
	in, err := ch.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	go func() {
		for d := range in {
			_ = ch.Publish("", d.ReplyTo, false, false, amqp.Publishing{CorrelationId: d.CorrelationId, Body: d.Body})
			_ = d.Ack(false)
		}
	}()
	_, _ = os.Stdin.Read(make([]byte, 1)) // until the benchmark closes it
	return nil
}
