package rpc_test

import (
	"context"
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

// Calls spread over servers; a slow one gets fewer.
func TestCallsSpreadOverServers(t *testing.T) {
	t.Parallel()
	const calls = 300
	s := newSetup(t)
	var counts [3]atomic.Int64
	for i := range counts {
		s.serve(func(ctx context.Context, d amqp.Delivery) (amqp.Publishing, error) {
			counts[i].Add(1)
			if i == 2 {
				time.Sleep(50 * time.Millisecond) // a slow server's work
			}
			return echo(ctx, d)
		}, rpc.ServerConfig{})
	}
	c := s.client(rpc.ClientConfig{})
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for range calls / 20 {
				s.answers(c, "x", "x")
			}
		})
	}
	wg.Wait()
	a, b, slow := counts[0].Load(), counts[1].Load(), counts[2].Load()
	t.Logf("%d, %d, and the slow one %d", a, b, slow)
	require.EqualValues(t, calls, a+b+slow)
	for _, n := range []int64{a, b, slow} {
		require.Positive(t, n)
	}
	require.Less(t, slow, min(a, b))
}

// A server that stops answers what it has begun, and hands back the rest as if it had never had it: no caller notices.
func TestShutdownDrains(t *testing.T) {
	t.Parallel()
	for _, prefetch := range []int{1, 10} {
		t.Run(strconv.Itoa(prefetch), func(t *testing.T) {
			t.Parallel()
			s := newSetup(t)
			var handled atomic.Int64
			h := func(ctx context.Context, d amqp.Delivery) (amqp.Publishing, error) {
				handled.Add(1)
				time.Sleep(2 * time.Millisecond) // work
				return echo(ctx, d)
			}
			cfg := rpc.ServerConfig{Concurrency: 3, Prefetch: prefetch}
			_, stop := s.serve(h, cfg)
			c := s.client(rpc.ClientConfig{})
			var wg sync.WaitGroup
			var failed atomic.Int64
			halt := make(chan struct{})
			var calls atomic.Int64
			for i := range 32 {
				wg.Go(func() {
					for n := 0; ; n++ {
						select {
						case <-halt:
							return
						default:
						}
						body := strconv.Itoa(i*100_000 + n)
						calls.Add(1)
						if got, err := s.call(c, body, patience); err != nil || got != body {
							failed.Add(1)
							t.Errorf("%s: %q, %v", body, got, err)
						}
					}
				})
			}
			for range 5 { // a rolling deploy
				_, next := s.serve(h, cfg)
				testenv.Eventually(t, patience, func() bool { return handled.Load() > 100 }, "calls are made")
				handled.Store(0)
				require.NoError(t, stop())
				stop = next
			}
			close(halt)
			wg.Wait()
			require.Zero(t, failed.Load())
			t.Logf("%d calls over 5 stops", calls.Load())
		})
	}
}

// A handler that outlasts the grace period sees its context end. Its caller is told that nobody knows what became of it,
// unless it may be executed again: then another server does.
func TestGraceEnds(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	started := make(chan struct{}, 10)
	_, stop := s.serve(holding(started, nil), rpc.ServerConfig{Concurrency: 2, ShutdownTimeout: 100 * time.Millisecond})
	c := s.client(rpc.ClientConfig{})
	plain, again := make(chan error, 1), make(chan error, 1)
	go func() { _, err := s.call(c, "plain", patience); plain <- err }()
	go func() { _, err := s.call(c.Idempotent(), "again", patience); again <- err }()
	receive(t, started, "handler")
	receive(t, started, "handler")
	require.NoError(t, stop())
	s.serve(echo, rpc.ServerConfig{})
	require.ErrorIs(t, receive(t, plain, "plain call"), reconnect.ErrUnknown)
	require.NoError(t, receive(t, again, "idempotent call"))
}

// Pause takes nothing new, and what waits goes to other servers as if this one had never had it.
func TestPause(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	started, release := make(chan struct{}, 10), make(chan struct{})
	server, _ := s.serve(holding(started, release), rpc.ServerConfig{Prefetch: 10})
	c := s.client(rpc.ClientConfig{})
	var wg sync.WaitGroup
	wg.Go(func() { s.answers(c, "begun", "begun") })
	receive(t, started, "handler")
	for range 5 {
		wg.Go(func() { s.answers(c, "waits", "waits") })
	}
	testenv.Eventually(t, patience, func() bool { return s.broker.Queue(t, s.queue).Unacked == 6 }, "they wait in the prefetch")
	server.Pause()
	testenv.Eventually(t, patience, func() bool { q := s.broker.Queue(t, s.queue); return q.Unacked == 1 && q.Ready == 5 }, "they are back")
	s.serve(echo, rpc.ServerConfig{})
	testenv.Eventually(t, patience, func() bool { return s.broker.Queue(t, s.queue).Ready == 0 }, "another one takes them")
	close(release)
	wg.Wait()
	server.Resume()
	testenv.Eventually(t, patience, func() bool { return s.broker.Queue(t, s.queue).Consumers == 2 }, "it consumes again")
	s.answers(c, "x", "x")
}

// Middleware is a function around a Handler.
func TestMiddleware(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	var seen atomic.Int64
	count := func(h rpc.Handler) rpc.Handler {
		return func(ctx context.Context, d amqp.Delivery) (amqp.Publishing, error) {
			seen.Add(1)
			reply, err := h(ctx, d)
			reply.Headers = amqp.Table{"seen": seen.Load()}
			return reply, err
		}
	}
	s.serve(count(count(echo)), rpc.ServerConfig{})
	d, err := s.client(rpc.ClientConfig{}).Call(t.Context(), s.queue, amqp.Publishing{})
	require.NoError(t, err)
	require.EqualValues(t, 2, d.Headers["seen"])
}

// A server that stores its answers replays them to a request that comes again, from this or another client.
func TestReplayingServer(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	var mu sync.Mutex
	stored := map[string]amqp.Publishing{}
	var runs int
	once := func(h rpc.Handler) rpc.Handler {
		return func(ctx context.Context, d amqp.Delivery) (amqp.Publishing, error) {
			mu.Lock()
			defer mu.Unlock()
			if reply, done := stored[d.MessageId]; done {
				return reply, nil
			}
			reply, err := h(ctx, d)
			if err == nil {
				stored[d.MessageId] = reply
			}
			return reply, err
		}
	}
	s.serve(once(func(context.Context, amqp.Delivery) (amqp.Publishing, error) {
		runs++
		return amqp.Publishing{Body: []byte(strconv.Itoa(runs))}, nil
	}), rpc.ServerConfig{Idempotent: true})
	c := s.client(rpc.ClientConfig{}).Idempotent()
	for range 3 {
		d, err := c.Call(t.Context(), s.queue, amqp.Publishing{MessageId: "charge-17"})
		require.NoError(t, err)
		require.Equal(t, "1", string(d.Body))
	}
}

// A queue that exists with other arguments is an error of Run.
func TestConflictingQueue(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	s.declare(rpc.ServerConfig{MaxDeadline: time.Minute})
	other := s.dial(s.url, reconnect.Config{Name: s.name + "-other"})
	server, err := rpc.NewServer(other, s.queue, echo, rpc.ServerConfig{})
	require.NoError(t, err)
	began := time.Now()
	var conflict *reconnect.TopologyError
	require.ErrorAs(t, server.Run(t.Context()), &conflict)
	require.Equal(t, "x-message-ttl", conflict.Argument)
	took(t, began, time.Second, "the error")
}
