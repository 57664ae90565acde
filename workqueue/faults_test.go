package workqueue_test

import (
	"context"
	"errors"
	"io"
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
	"github.com/warrenmq/warren/workqueue"
)

// quiet keeps the expected losses out of the tests' output.
var quiet = testenv.Logger(io.Discard)

// A5: whatever ends consuming, there is one consumer per worker again and the next message is handled.
func TestA5EveryEndOfConsumingLeadsBack(t *testing.T) {
	node := testenv.Node(t)
	s := newSetupOn(t, node.Broker, node.URL(), workqueue.Queue{})
	handled := newRuns()
	s.start(s.conn, func(_ context.Context, d amqp.Delivery) error { handled.add(d); return nil }, workqueue.WorkerConfig{Concurrency: 3})
	p := s.producer(reconnect.PublisherConfig{})

	whole := func(step string) {
		t.Helper()
		testenv.Eventually(t, patience, func() bool { return s.broker.Queue(t, s.queue.Name).Consumers == 3 }, "%s: one consumer per worker", step)
		require.NoError(t, publishUntilTaken(t, p, step), step)
		testenv.Eventually(t, patience, func() bool { return handled.of(step) > 0 }, "%s: the next message handled", step)
	}
	whole("at first")
	require.Equal(t, 3, consumingChannels(s), "one channel per worker")
	s.broker.CloseChannels(t, s.name+"/consuming")
	whole("channels closed")
	s.broker.DeleteQueue(t, s.queue.Name)
	whole("queue deleted")
	for i := range 5 {
		s.broker.CutConnections(t, s.name)
		whole("cut " + strconv.Itoa(i))
	}
	node.Restart()
	whole("broker restarted")
}

func consumingChannels(s *setup) int { return len(s.broker.Channels(s.t, s.name+"/consuming")) }

// publishUntilTaken publishes a message until a queue takes it: a deleted queue is back only when a worker has declared
// it again.
func publishUntilTaken(t *testing.T, p *workqueue.Producer, id string) error {
	var err error
	testenv.Eventually(t, patience, func() bool {
		err = p.Publish(t.Context(), amqp.Publishing{MessageId: id})
		var returned *reconnect.ReturnedError
		return !errors.As(err, &returned)
	}, "message %s taken by the queue", id)
	return err
}

// A6: twenty cuts under load; consumers and unacknowledged messages stay within bounds, nothing is lost, nothing leaks.
func TestA6CutsUnderLoad(t *testing.T) {
	const concurrency, prefetch, cuts = 4, 10, 20
	s := newSetup(t, workqueue.Queue{})
	handled := newRuns()
	s.publish(1) // declares, and opens the publishing side
	s.start(s.conn, func(ctx context.Context, d amqp.Delivery) error {
		if err := work(ctx, time.Millisecond); err != nil {
			return err
		}
		handled.add(d)
		return nil
	}, workqueue.WorkerConfig{Concurrency: concurrency, Prefetch: prefetch})
	s.settled()
	before := runtime.NumGoroutine()

	confirmed := newRuns()
	ctx, stopPublishing := context.WithCancel(t.Context())
	var publishing sync.WaitGroup
	p := s.producer(reconnect.PublisherConfig{})
	for worker := range 4 {
		publishing.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				id := strconv.Itoa(worker) + "-" + strconv.Itoa(i)
				if p.Publish(ctx, amqp.Publishing{MessageId: id}) == nil {
					confirmed.add(amqp.Delivery{MessageId: id})
				}
			}
		})
	}
	for range cuts {
		n := confirmed.total()
		s.broker.CutConnections(t, s.name)
		testenv.Eventually(t, patience, func() bool { return confirmed.total() >= n+50 }, "publishing goes on after a cut")
		info := s.broker.Queue(t, s.queue.Name)
		require.LessOrEqual(t, info.Consumers, 2*concurrency, "consumers; the broker may not have noticed the last cut yet")
		require.LessOrEqual(t, info.Unacked, 2*concurrency*prefetch)
	}
	stopPublishing()
	publishing.Wait()
	s.settled()
	testenv.Eventually(t, patience, func() bool { return s.broker.Queue(t, s.queue.Name).Consumers == concurrency }, "one consumer per worker")
	for id := range confirmed.byID {
		require.Positive(t, handled.of(id), "confirmed message %s was handled", id)
	}
	require.Zero(t, s.depth(s.queue.DeadLetterQueue()))
	testenv.Eventually(t, patience, func() bool { return runtime.NumGoroutine() <= before+4 },
		"goroutines as before (%d)", before)
}

// A13: failing and panicking messages among good ones run a bounded number of times and end in the dead-letter queue with
// the broker's reason; the good ones are handled and the process lives.
func TestA13FailuresAmongGoodOnes(t *testing.T) {
	for name, q := range map[string]workqueue.Queue{"quorum": {}, "classic": {Classic: true}} {
		t.Run(name, func(t *testing.T) {
			s := newSetup(t, q)
			handled := newRuns()
			s.start(s.conn, func(_ context.Context, d amqp.Delivery) error {
				handled.add(d)
				switch d.MessageId {
				case "13":
					return errors.New("cannot")
				case "26":
					panic("oh no")
				}
				return nil
			}, workqueue.WorkerConfig{Concurrency: 2, Prefetch: 10})
			s.publish(102)
			testenv.Eventually(t, patience, func() bool { return s.depth(s.queue.DeadLetterQueue()) == 2 }, "both dead-lettered")
			s.settled()
			require.Equal(t, 102, handled.distinct())
			require.Equal(t, 1, handled.of("13"), "a failing message is handled once")
			require.Equal(t, 1, handled.of("26"), "a panicking message is handled once")
			require.Equal(t, 1, handled.most())
			dead := s.takeDead(2)
			require.ElementsMatch(t, []string{"13", "26"}, []string{dead[0].MessageId, dead[1].MessageId})
			for _, d := range dead {
				require.Equal(t, "job "+d.MessageId, string(d.Body))
				require.EqualValues(t, amqp.Persistent, d.DeliveryMode)
				if !q.Classic {
					require.Equal(t, "rejected", d.Headers["x-first-death-reason"])
				}
			}
		})
	}
}

// takeDead takes n messages out of the dead-letter queue.
func (s *setup) takeDead(n int) []amqp.Delivery {
	s.t.Helper()
	return s.take(s.queue.DeadLetterQueue(), n)
}

// take takes n messages out of a queue.
func (s *setup) take(queue string, n int) []amqp.Delivery {
	s.t.Helper()
	ch, err := s.broker.Dial(s.t).Channel()
	require.NoError(s.t, err)
	var out []amqp.Delivery
	testenv.Eventually(s.t, patience, func() bool {
		for len(out) < n {
			d, ok, err := ch.Get(queue, true)
			require.NoError(s.t, err)
			if !ok {
				return false
			}
			out = append(out, d)
		}
		return true
	}, "%d messages in %s", n, queue)
	return out
}

// A14: a stop in the middle of 200 messages: what was started is acknowledged, the rest comes again once, in bounded time.
func TestA14StopInTheMiddle(t *testing.T) {
	t.Parallel()
	const messages, job = 200, 100 * time.Millisecond
	s := newSetup(t, workqueue.Queue{})
	s.publish(messages)
	first, second := newRuns(), newRuns()
	stop := s.start(s.conn, func(_ context.Context, d amqp.Delivery) error {
		first.add(d)
		return work(context.Background(), job) // started is started
	}, workqueue.WorkerConfig{Concurrency: 2, Prefetch: 20})
	testenv.Eventually(t, patience, func() bool { return first.total() >= 30 }, "some handled")
	began := time.Now()
	require.NoError(t, stop())
	took := time.Since(began)
	require.Less(t, took, 3*(job+time.Second), "stop took %v, at most the longest handler and a second", took)

	started := first.total()
	testenv.Eventually(t, patience, func() bool { return s.broker.Queue(t, s.queue.Name).Unacked == 0 }, "nothing is held any more")
	require.Equal(t, messages-started, s.broker.Queue(t, s.queue.Name).Ready, "all that was started is settled, the rest is back")
	s.start(s.conn, func(_ context.Context, d amqp.Delivery) error { second.add(d); return nil }, workqueue.WorkerConfig{Concurrency: 2, Prefetch: 20})
	s.settled()
	require.Equal(t, messages-started, second.total(), "the rest was redelivered, once each")
	for id := range first.byID {
		require.Zero(t, second.of(id), "message %s was finished and must not come again", id)
	}
	require.Zero(t, s.depth(s.queue.DeadLetterQueue()))
}

// P25: what waited in the prefetch of dying workers is not punished: ten messages, a limit of three returns, four lost
// connections.
func TestP25DeliveryLimitSparesBystanders(t *testing.T) {
	t.Parallel()
	s := newSetup(t, workqueue.Queue{DeliveryLimit: 3})
	s.publish(10)
	inside := make(chan struct{}, 100)
	stop := s.start(s.conn, func(ctx context.Context, _ amqp.Delivery) error {
		inside <- struct{}{}
		<-ctx.Done() // never finished in this life
		return context.Cause(ctx)
	}, workqueue.WorkerConfig{Prefetch: 10, ShutdownTimeout: 100 * time.Millisecond})
	for range 4 {
		select {
		case <-inside:
		case <-time.After(patience):
			require.Fail(t, "no message was started")
		}
		s.broker.CutConnections(t, s.name+"/consuming")
	}
	<-inside // the next message, after the first has used up its returns
	_ = stop()
	s.deadLettered(1) // only the message that was being handled each time
	require.Equal(t, "0", s.takeDead(1)[0].MessageId)
	handled := newRuns()
	s.start(s.conn, func(_ context.Context, d amqp.Delivery) error { handled.add(d); return nil }, workqueue.WorkerConfig{Prefetch: 10})
	s.settled()
	require.Equal(t, 9, handled.distinct())
}

// Stops cost nobody an attempt: 30 graceful stops and 30 cuts in turn, 200 messages, prefetch 100, some handled in each life.
func TestStopsCostNobodyAnAttempt(t *testing.T) {
	t.Parallel()
	const lives, messages = 60, 200
	s := newSetup(t, workqueue.Queue{})
	s.publish(messages)
	handled := newRuns()
	var inLife atomic.Int32
	h := func(ctx context.Context, d amqp.Delivery) error {
		if err := work(ctx, 5*time.Millisecond); err != nil {
			return err
		}
		handled.add(d)
		inLife.Add(1)
		return nil
	}
	cfg := workqueue.WorkerConfig{Prefetch: 100}
	stop := s.start(s.conn, h, cfg)
	for life := range lives {
		testenv.Eventually(t, patience, func() bool { return inLife.Load() >= 3 || s.depth(s.queue.Name) == 0 }, "some handled in life %d", life)
		if life%2 == 0 {
			require.NoError(t, stop())
			inLife.Store(0)
			stop = s.start(s.conn, h, cfg)
			continue
		}
		s.broker.CutConnections(t, s.name+"/consuming")
		inLife.Store(0)
	}
	s.settled()
	require.Zero(t, s.depth(s.queue.DeadLetterQueue()), "healthy messages in the dead-letter queue")
	require.Equal(t, messages, handled.distinct())
}
