package workqueue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

func TestEachMessageToOneWorker(t *testing.T) {
	s := newSetup(t, workqueue.Queue{})
	handled := newRuns()
	h := func(_ context.Context, d amqp.Delivery) error { handled.add(d); return nil }
	s.start(s.conn, h, workqueue.WorkerConfig{Concurrency: 4, Prefetch: 20})
	s.start(s.dial(testenv.Name(t, "other")), h, workqueue.WorkerConfig{Concurrency: 4})
	s.publish(500)
	s.settled()
	require.Equal(t, 500, handled.total())
	require.Equal(t, 500, handled.distinct())
}

func TestTwentyWorkersHoldTwentyChannelsOnOneConnection(t *testing.T) {
	s := newSetup(t, workqueue.Queue{})
	s.start(s.conn, ignore, workqueue.WorkerConfig{Concurrency: 20})
	require.Len(t, s.broker.Connections(t, s.name+"/consuming"), 1)
	channels := s.broker.Channels(t, s.name+"/consuming")
	require.Len(t, channels, 20)
	for _, ch := range channels {
		require.Equal(t, 1, ch.Consumers, "channel %d", ch.Number)
	}
	require.Equal(t, 20, s.broker.Queue(t, s.queue.Name).Consumers)
}

// With prefetch 1 a message goes to whoever is free: while a slow worker has one, the other gets all the rest.
func TestFairDispatch(t *testing.T) {
	s := newSetup(t, workqueue.Queue{})
	var slow, fast atomic.Int32
	done := make(chan struct{})
	finish := sync.OnceFunc(func() { close(done) })
	s.start(s.conn, func(context.Context, amqp.Delivery) error { slow.Add(1); <-done; return nil }, workqueue.WorkerConfig{})
	s.start(s.conn, func(context.Context, amqp.Delivery) error { fast.Add(1); return nil }, workqueue.WorkerConfig{})
	defer finish() // before the workers are stopped
	s.publish(60)
	testenv.Eventually(t, patience, func() bool { return fast.Load() == 59 }, "the rest goes to the one that is free")
	require.EqualValues(t, 1, slow.Load())
	finish()
	s.settled()
}

func TestPrioritiesFirst(t *testing.T) {
	s := newSetup(t, workqueue.Queue{MaxPriority: 5})
	p := s.producer(reconnect.PublisherConfig{})
	for i, priority := range []uint8{0, 1, 5, 3} {
		require.NoError(t, p.Publish(t.Context(), amqp.Publishing{MessageId: strconv.Itoa(i), Priority: priority}))
	}
	handled := newRuns()
	s.start(s.conn, func(_ context.Context, d amqp.Delivery) error { handled.add(d); return nil }, workqueue.WorkerConfig{})
	s.settled()
	require.Equal(t, []string{"2", "3", "1", "0"}, handled.firsts())
	require.Equal(t, "classic", s.broker.Queue(t, s.queue.Name).Type)
}

// One channel at a time consumes, in order; when it is cut off another takes over, and no message overtakes another.
func TestSingleActiveConsumer(t *testing.T) {
	s := newSetup(t, workqueue.Queue{SingleActiveConsumer: true})
	handled := newRuns()
	var inside, together atomic.Int32
	h := func(ctx context.Context, d amqp.Delivery) error {
		if inside.Add(1) > 1 && ctx.Err() == nil {
			together.Add(1)
		}
		defer inside.Add(-1)
		handled.add(d)
		return work(ctx, 5*time.Millisecond)
	}
	stop := s.start(s.conn, h, workqueue.WorkerConfig{Concurrency: 2})
	s.start(s.dial(testenv.Name(t, "other")), h, workqueue.WorkerConfig{})
	s.publish(100)
	testenv.Eventually(t, patience, func() bool { return handled.distinct() >= 20 }, "some handled")
	require.Zero(t, together.Load(), "handlers at the same time, before anything was cut")
	s.broker.CutConnections(t, s.name+"/consuming")
	testenv.Eventually(t, patience, func() bool { return handled.distinct() >= 60 }, "more handled")
	require.NoError(t, stop())
	s.settled()
	require.Equal(t, ids(100), handled.firsts(), "order of first starts")
	require.Zero(t, s.depth(s.queue.DeadLetterQueue()))
}

func TestFullQueueRefuses(t *testing.T) {
	s := newSetup(t, workqueue.Queue{MaxLength: 1})
	p := s.producer(reconnect.PublisherConfig{})
	accepted := 0
	testenv.Eventually(t, patience, func() bool {
		err := p.Publish(t.Context(), amqp.Publishing{})
		if err == nil {
			accepted++
			return false
		}
		require.ErrorIs(t, err, reconnect.ErrRefused)
		require.Regexp(t, fmt.Sprintf(`^workqueue: publish to queue %q: message "[0-9a-f-]{36}": refused by a queue$`, s.queue.Name), err.Error(), "said once")
		return true
	}, "the queue refuses when it is full")
	require.Equal(t, accepted, s.depth(s.queue.Name), "what was accepted is there, what was refused is not")
}

func TestExpiredMessagesAreDeadLettered(t *testing.T) {
	for name, q := range map[string]workqueue.Queue{"quorum": {TTL: 50 * time.Millisecond}, "classic": {TTL: 50 * time.Millisecond, Classic: true}} {
		t.Run(name, func(t *testing.T) {
			s := newSetup(t, q)
			s.publish(3)
			require.Equal(t, "expired", s.takeDead(3)[0].Headers["x-first-death-reason"])
		})
	}
}

func TestDeadLetterExchange(t *testing.T) {
	s := newSetup(t, workqueue.Queue{DeadLetterExchange: testenv.Name(t, "dead")})
	s.publish(1)
	s.start(s.conn, func(context.Context, amqp.Delivery) error { return errors.New("no") }, workqueue.WorkerConfig{})
	require.Equal(t, "0", s.takeDead(1)[0].MessageId)
}

func TestNoDeadLetterDrops(t *testing.T) {
	s := newSetup(t, workqueue.Queue{NoDeadLetter: true})
	s.publish(1)
	s.start(s.conn, func(context.Context, amqp.Delivery) error { return errors.New("no") }, workqueue.WorkerConfig{})
	s.settled()
	require.False(t, s.broker.Queue(t, s.queue.DeadLetterQueue()).Exists)
}

// A classic queue's failures are copied with a confirm: while no copy can be stored, the message stays.
func TestClassicFailureIsKeptUntilTheCopyIsSafe(t *testing.T) {
	s := newSetup(t, workqueue.Queue{Classic: true})
	var runs atomic.Int32
	s.start(s.conn, func(context.Context, amqp.Delivery) error { runs.Add(1); return errors.New("no") }, workqueue.WorkerConfig{})
	s.broker.DeleteQueue(t, s.queue.DeadLetterQueue())
	s.raw(amqp.Publishing{MessageId: "0"}) // a producer would declare the dead-letter queue again
	testenv.Eventually(t, patience, func() bool {
		state := workers(s.conn)[0]
		return state.Phase == "waiting" && strings.Contains(state.Reason, "dead-letter copy not stored")
	}, "the worker's state says what it waits for")
	require.Equal(t, 1, s.depth(s.queue.Name))
	require.NoError(t, s.conn.Declare(t.Context(), s.queue.Topology()))
	require.Equal(t, "0", s.takeDead(1)[0].MessageId)
	s.settled()
	require.EqualValues(t, 1, runs.Load(), "the handler is not called again, only the copy is tried again")
}

func TestBatchWorker(t *testing.T) {
	s := newSetup(t, workqueue.Queue{})
	var sizes []int
	var bad atomic.Int32
	w, err := workqueue.NewBatchWorker(s.conn, s.queue, func(_ context.Context, ds []amqp.Delivery) error {
		sizes = append(sizes, len(ds)) // one channel, so one batch at a time
		outcome := make(reconnect.BatchError, len(ds))
		failed := false
		for i, d := range ds {
			if d.MessageId == "7" || d.MessageId == "77" {
				bad.Add(1)
				outcome[i], failed = errors.New("no"), true
			}
		}
		if failed {
			return outcome
		}
		return nil
	}, workqueue.WorkerConfig{BatchSize: 25, BatchWait: 20 * time.Millisecond})
	require.NoError(t, err)
	s.publish(200)
	run(t, w)
	s.settled()
	require.EqualValues(t, 2, bad.Load())
	require.ElementsMatch(t, []string{"7", "77"}, []string{s.takeDead(1)[0].MessageId, s.takeDead(1)[0].MessageId})
	total := 0
	for _, n := range sizes {
		require.LessOrEqual(t, n, 25)
		total += n
	}
	require.Equal(t, 200, total)
}

func TestPauseAndResume(t *testing.T) {
	s := newSetup(t, workqueue.Queue{})
	handled := newRuns()
	w, err := workqueue.NewWorker(s.conn, s.queue, func(_ context.Context, d amqp.Delivery) error { handled.add(d); return nil }, workqueue.WorkerConfig{Concurrency: 2})
	require.NoError(t, err)
	run(t, w)
	w.Pause()
	testenv.Eventually(t, patience, func() bool { return s.broker.Queue(t, s.queue.Name).Consumers == 0 }, "nobody consumes")
	testenv.Eventually(t, patience, func() bool { // each says so when it has its answer, and has handed back what it held
		return !slices.ContainsFunc(workers(s.conn), func(state reconnect.State) bool { return state.Phase != "paused" })
	}, "the states say so")
	s.publish(5)
	require.Zero(t, handled.total())
	w.Resume()
	s.settled()
	require.Equal(t, 5, handled.distinct())
}

// A pause outlasts the connection, and may begin and end while there is none.
func TestPauseAroundCuts(t *testing.T) {
	broker := testenv.Shared(t)
	proxy := testenv.Proxy(t, broker.URL())
	s := newSetupWith(t, broker, proxy.URL(), workqueue.Queue{}, reconnect.Config{BackoffMin: 10 * time.Millisecond, BackoffMax: 50 * time.Millisecond})
	handled := newRuns()
	entered, leave := make(chan struct{}), make(chan struct{})
	w, err := workqueue.NewWorker(s.conn, s.queue, func(_ context.Context, d amqp.Delivery) error {
		handled.add(d)
		if handled.total() == 1 {
			close(entered)
			<-leave
		}
		return nil
	}, workqueue.WorkerConfig{Concurrency: 2})
	require.NoError(t, err)
	run(t, w)
	consumers := func(n int) {
		t.Helper()
		testenv.Eventually(t, patience, func() bool { return s.broker.Queue(t, s.queue.Name).Consumers == n }, "%d consumers", n)
	}
	in := func(phase string) {
		t.Helper()
		testenv.Eventually(t, patience, func() bool {
			n := 0
			for _, state := range s.conn.State() {
				if state.Phase == phase {
					n++
				}
			}
			return n == 2
		}, "both %s", phase)
	}
	cut := func() {
		proxy.Refuse()
		proxy.Cut()
		in("connecting")
	}
	consumers(2)

	s.publish(1)
	<-entered
	w.Pause() // in the middle of a message, which the cut gives back
	consumers(0)
	cut()
	proxy.Heal()
	close(leave)
	in("paused")
	s.publish(3)
	require.NoError(t, s.conn.Ping(t.Context()))
	require.Zero(t, s.broker.Queue(t, s.queue.Name).Consumers)
	require.Equal(t, 1, handled.total())

	cut()
	w.Resume()
	proxy.Heal()
	s.settled()
	require.Equal(t, 5, handled.total(), "three, one of two that have the same id, and that again which the cut gave back")
	in("consuming")

	cut()
	w.Pause()
	proxy.Heal()
	in("paused")
	consumers(0) // once those of the lost connection are gone
	w.Resume()
	consumers(2)
}

func TestPerSecond(t *testing.T) {
	s := newSetup(t, workqueue.Queue{})
	s.publish(20)
	handled := newRuns()
	began := time.Now()
	s.start(s.conn, func(_ context.Context, d amqp.Delivery) error { handled.add(d); return nil }, workqueue.WorkerConfig{Concurrency: 4, Prefetch: 5, PerSecond: 20})
	s.settled()
	require.GreaterOrEqual(t, time.Since(began), 900*time.Millisecond, "20 handlers at 20 a second")
	require.Equal(t, 20, handled.total())
}

func TestRunEndsForWhatCannotBeMended(t *testing.T) {
	t.Run("other arguments", func(t *testing.T) {
		s := newSetup(t, workqueue.Queue{})
		s.publish(1)
		other := s.queue
		other.DeliveryLimit = 7
		w, err := workqueue.NewWorker(s.dial(testenv.Name(t, "other")), other, ignore, workqueue.WorkerConfig{Concurrency: 3})
		require.NoError(t, err)
		began := time.Now()
		err = w.Run(t.Context())
		var topology *reconnect.TopologyError
		require.ErrorAs(t, err, &topology)
		require.Equal(t, "x-delivery-limit", topology.Argument)
		require.Equal(t, "7", topology.Wanted)
		require.Equal(t, "20", topology.Existing)
		require.Less(t, time.Since(began), 3*time.Second, "took %v", time.Since(began))
	})
	t.Run("closed", func(t *testing.T) {
		s := newSetup(t, workqueue.Queue{})
		conn := s.dial(testenv.Name(t, "other"))
		w, err := workqueue.NewWorker(conn, s.queue, ignore, workqueue.WorkerConfig{})
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() { done <- w.Run(t.Context()) }()
		<-w.Ready()
		require.NoError(t, conn.Close(t.Context()))
		require.ErrorIs(t, <-done, reconnect.ErrClosed)
	})
}

func TestPassiveQueueIsWaitedFor(t *testing.T) {
	broker := testenv.Shared(t)
	// RabbitMQ 3.10 ends connections with 541 that consume from a quorum queue which it is still making: the pauses are
	// longer than that takes.
	s := newSetupWith(t, broker, broker.URL(), workqueue.Queue{Declare: reconnect.Passive},
		reconnect.Config{BackoffMin: 300 * time.Millisecond, BackoffMax: 300 * time.Millisecond})
	p := s.producer(reconnect.PublisherConfig{})
	var missing *amqp.Error
	require.ErrorAs(t, p.Publish(t.Context(), amqp.Publishing{}), &missing)
	require.Equal(t, amqp.NotFound, missing.Code)

	w, err := workqueue.NewWorker(s.conn, s.queue, ignore, workqueue.WorkerConfig{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	testenv.Eventually(t, patience, func() bool {
		for _, state := range s.conn.State() {
			if state.Phase == "starting" && state.Attempts > 1 && state.Reason != "" {
				return true
			}
		}
		return false
	}, "the worker's state says what it waits for")
	operator := s.queue
	operator.Declare = reconnect.Active
	require.NoError(t, s.dial(testenv.Name(t, "operator")).Declare(t.Context(), operator.Topology()))
	select {
	case <-w.Ready():
	case <-time.After(patience):
		require.Fail(t, "the worker does not consume", "%v", s.conn.State())
	}
	require.NoError(t, p.Publish(t.Context(), amqp.Publishing{}))
	s.settled()
	cancel()
	require.NoError(t, <-done)
}

// A failed message that is more than we send, since another program sent it, is left to the broker's dead-lettering: it
// does not hold up what stands behind it.
func TestClassicFailureThatCannotBeCopied(t *testing.T) {
	deep := amqp.Table{"leaf": "x"}
	for range 20 {
		deep = amqp.Table{"t": deep}
	}
	for name, msg := range map[string]amqp.Publishing{
		"body above MaxBody": {MessageId: "bad", Body: make([]byte, 1001)},
		"headers of 100 KB":  {MessageId: "bad", Headers: amqp.Table{"h": strings.Repeat("x", 100<<10)}},
		"headers 20 deep":    {MessageId: "bad", Headers: deep},
	} {
		t.Run(name, func(t *testing.T) {
			broker := testenv.Shared(t)
			s := newSetupWith(t, broker, broker.URL(), workqueue.Queue{Classic: true}, reconnect.Config{MaxBody: 1000})
			require.NoError(t, s.conn.Declare(t.Context(), s.queue.Topology()))
			s.raw(msg)
			s.raw(amqp.Publishing{MessageId: "good"})
			handled := newRuns()
			s.start(s.conn, func(_ context.Context, d amqp.Delivery) error {
				handled.add(d)
				if d.MessageId == "bad" {
					return errors.New("no")
				}
				return nil
			}, workqueue.WorkerConfig{})
			s.settled()
			require.Equal(t, 1, handled.of("good"))
			s.deadLettered(1)
		})
	}
}

// Producer and worker of one Conn begin at the same time, on a queue that does not exist yet: nothing is refused by a queue
// that the broker is still making.
func TestBothLinksDeclareANewQueue(t *testing.T) {
	for range 20 {
		s := newSetup(t, workqueue.Queue{})
		w, err := workqueue.NewWorker(s.conn, s.queue, ignore, workqueue.WorkerConfig{Concurrency: 2})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		require.NoError(t, s.producer(reconnect.PublisherConfig{}).Publish(t.Context(), amqp.Publishing{}))
		cancel()
		require.NoError(t, <-done)
	}
}
