package rpc_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/rpc"
)

// inChaos reports whether the tests named Chaos have their long form (make chaos).
func inChaos() bool { return os.Getenv("WARREN_CHAOS") != "" }

// Calls from many goroutines while every link is cut every second: each ends with the answer to its own request or with an
// error that says what may have become of it; nothing stays behind. make chaos makes 100,000 of them.
func TestChaosP36P37CallsUnderCuts(t *testing.T) {
	testenv.NoLeaks(t)
	calls := int64(20_000)
	if inChaos() {
		calls = 100_000
	}
	callsUnderCuts(t, calls, 4*time.Second)
}

func callsUnderCuts(t *testing.T, calls int64, atLeast time.Duration) {
	s := newSetup(t)
	s.serve(func(ctx context.Context, d amqp.Delivery) (amqp.Publishing, error) {
		return amqp.Publishing{Body: append([]byte("re: "), d.Body...)}, nil
	}, rpc.ServerConfig{Concurrency: 8, Prefetch: 4})
	plain := s.client(rpc.ClientConfig{})
	clients := []*rpc.Client{plain, plain.Idempotent()}
	var next, answered, unknown, late, wrong atomic.Int64
	began := time.Now()
	var wg sync.WaitGroup
	for i := range 128 {
		wg.Go(func() {
			for {
				n := next.Add(1)
				if n > calls && time.Since(began) > atLeast {
					return
				}
				body := strconv.FormatInt(n, 10)
				got, err := s.call(clients[i%2], body, 10*time.Second)
				switch {
				case err == nil && got == "re: "+body:
					answered.Add(1)
				case errors.Is(err, context.DeadlineExceeded):
					late.Add(1)
				case errors.Is(err, reconnect.ErrUnknown) && i%2 == 0: // idempotent ones are sent again
					unknown.Add(1)
				default:
					wrong.Add(1)
					t.Errorf("call %s: %q, %v", body, got, err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	cuts := 0
	for ended := false; !ended; {
		select {
		case <-done:
			ended = true
		case <-time.After(time.Second):
			cuts += s.broker.CutConnections(t, s.name)
		}
	}
	require.Zero(t, wrong.Load())
	require.Zero(t, late.Load(), "an answer or an error comes within seconds")
	require.Zero(t, plain.Pending())
	require.GreaterOrEqual(t, answered.Load()+unknown.Load(), calls)
	require.Positive(t, cuts)
	s.answers(plain, "after", "re: after")
	testenv.Eventually(t, patience, func() bool { q := s.broker.Queue(t, s.queue); return q.Ready+q.Unacked == 0 }, "no request is left")
	t.Logf("%d calls in %v, %d links cut: %d answered, %d unknown, %d replies dropped", next.Load(), time.Since(began).Round(time.Millisecond), cuts,
		answered.Load(), unknown.Load(), plain.Dropped())
}

// P36: calls that time out leave nothing behind: no entry, no goroutine, no memory. A million of them in make chaos.
func TestChaosP36TimedOutCallsLeaveNothing(t *testing.T) {
	testenv.NoLeaks(t)
	const callers, perCall = 200, 3 * time.Millisecond
	calls := int64(10_000)
	if inChaos() {
		calls = 1_000_000
	}
	s := newSetup(t)
	s.declare(rpc.ServerConfig{})
	c := s.client(rpc.ClientConfig{})
	timeOut := func(n int64) {
		var left atomic.Int64
		left.Store(n)
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				for left.Add(-1) >= 0 {
					if _, err := s.call(c, "x", perCall); !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%v", err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	timeOut(2 * callers) // what is made once
	before, goroutines := heap(), runtime.NumGoroutine()
	began := time.Now()
	timeOut(calls)
	after := heap()
	t.Logf("%d calls in %v: heap %d KiB before, %d KiB after", calls, time.Since(began).Round(time.Millisecond), before>>10, after>>10)
	require.Zero(t, c.Pending())
	require.Less(t, after, before+2<<20, "less than 2 MiB more")
	testenv.Eventually(t, patience, func() bool { return runtime.NumGoroutine() <= goroutines+10 }, "no more than %d goroutines, and some", goroutines)
	s.serve(echo, rpc.ServerConfig{})
	s.answers(c, "after", "after")
}

// heap is what is in use after a collection.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // what a sync.Pool had goes with the second one
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
