package retry_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/retry"
	"github.com/warrenmq/warren/routing/consistenthash"
	"github.com/warrenmq/warren/workqueue"
)

func isNotNow(err error) bool {
	var n interface{ NotNow() bool }
	return errors.As(err, &n) && n.NotNow()
}

// An alarm of 20 s while every message fails: nothing reaches the dead-letter queue, no attempt is made twice or skipped. What is
// in another dead-letter queue is looked at meanwhile, and cannot be sent back.
func TestAlarm(t *testing.T) {
	t.Parallel() // it only waits
	node := testenv.Node(t)
	s := newSetupOn(t, node.Broker, node.URL(), workqueue.Queue{})
	s.conn = s.dialWith(reconnect.Config{Name: s.name, Heartbeat: 10 * time.Second}) // lost only if the alarm should do it
	policy := retry.Policy{MaxAttempts: 1000, InitialDelay: 100 * time.Millisecond, Multiplier: 2, MaxDelay: 800 * time.Millisecond}
	v := newVisits()
	var heal atomic.Bool
	h := func(_ context.Context, d amqp.Delivery) error {
		v.add(d)
		if heal.Load() {
			return nil
		}
		return errors.New("no")
	}
	const n = 40
	s.publish(n)
	s.start(s.retrier(policy).Handle(h), workqueue.WorkerConfig{Concurrency: 10})
	testenv.Eventually(t, patience, func() bool { return v.total() > 2*n }, "retries under way")
	const buried = 50
	d := newDeadOn(newSetupOn(t, node.Broker, node.URL(), workqueue.Queue{}))
	d.bury(0, buried)
	node.Alarm(true)
	over := time.After(20 * time.Second) // the length of the alarm is the scenario
	d.duringAlarm(buried)
	<-over
	node.Alarm(false)
	runs := v.total()
	testenv.Eventually(t, patience, func() bool { return v.total() > runs+n }, "retries go on")
	heal.Store(true)
	s.empty(policy)
	require.Zero(t, s.depth(s.queue.DeadLetterQueue()))
	for id, attempts := range attemptsOf(v) {
		for i, attempt := range attempts {
			require.Equal(t, i+1, attempt, "message %s: %v", id, attempts)
		}
	}
	require.Equal(t, n, v.distinct())
	d.afterAlarm(buried)
}

func attemptsOf(v *visits) map[string][]int {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := map[string][]int{}
	for id, runs := range v.byID {
		for _, run := range runs {
			out[id] = append(out[id], run.Attempt)
		}
	}
	return out
}

// While the copy cannot be confirmed the message stays, and its handler is not called again for the same attempt.
func TestCopyInDoubtDoesNotRunTheHandlerAgain(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	full := retry.Policy{MaxAttempts: 3, InitialDelay: 60 * time.Millisecond}
	s.cleanUp(full)
	r, err := retry.New(s.within(patience), s.conn, s.queue.Name, full)
	require.NoError(t, err)
	ch, err := s.broker.Dial(t).Channel()
	require.NoError(t, err)
	// A delay queue that refuses: one of our name that takes nothing.
	delay := s.queue.Name + ".retry.60"
	_, err = ch.QueueDelete(delay, false, false, false)
	require.NoError(t, err)
	_, err = ch.QueueDeclare(delay, true, false, false, false, amqp.Table{"x-queue-type": "classic", "x-max-length": int64(0), "x-overflow": "reject-publish"})
	require.NoError(t, err)
	v := newVisits()
	s.start(r.Handle(v.failing(2)), workqueue.WorkerConfig{})
	s.publish(1)
	testenv.Eventually(t, patience, func() bool {
		for _, state := range s.conn.State() {
			if state.Phase == "waiting" && strings.Contains(state.Reason, "not confirmed") {
				return true
			}
		}
		return false
	}, "the worker says what it waits for")
	testenv.Eventually(t, patience, func() bool { return s.broker.Queue(t, s.queue.Name).Unacked == 1 }, "it holds the message")
	require.Equal(t, 1, v.total())
	_, err = ch.QueueDelete(delay, false, false, false)
	require.NoError(t, err)
	testenv.Eventually(t, patience, func() bool { return v.total() == 2 }, "second attempt, through a queue made anew")
	require.Equal(t, 2, v.of("0")[1].Attempt)
	require.Zero(t, s.depth(s.queue.DeadLetterQueue()))
	s.empty(full)
}

// Delay queues and the dead-letter queue that somebody deletes are there again for the next failure.
func TestDeletedQueuesAreMadeAgain(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	s.retrier(quick)
	require.True(t, s.broker.Queue(t, s.queue.DeadLetterQueue()).Exists, "before the first failure")
	for _, q := range quick.Topology(s.queue.Name).Queues {
		require.True(t, s.broker.Queue(t, q.Name).Exists, q.Name)
		s.broker.DeleteQueue(t, q.Name)
	}
	v := newVisits()
	s.start(s.retrier(quick).Handle(func(_ context.Context, d amqp.Delivery) error {
		if v.add(d); v.total() == 1 {
			for _, q := range quick.Topology(s.queue.Name).Queues {
				s.broker.DeleteQueue(t, q.Name)
			}
		}
		return errors.New("no")
	}), workqueue.WorkerConfig{Concurrency: 5})
	s.publish(1)
	testenv.Eventually(t, patience, func() bool { return v.total() == quick.MaxAttempts }, "all attempts")
	s.drain(s.queue.DeadLetterQueue(), 1)
	s.broker.DeleteQueue(t, s.queue.DeadLetterQueue())
	s.publish(20)
	s.drain(s.queue.DeadLetterQueue(), 20)
	s.empty(quick)
}

// What is declared is declared again on a new connection, also when it was deleted in between.
func TestTopologySurvivesReconnects(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	s.retrier(quick)
	for _, q := range quick.Topology(s.queue.Name).Queues {
		s.broker.DeleteQueue(t, q.Name)
	}
	testenv.Eventually(t, patience, func() bool { return s.broker.CutConnections(t, s.name) > 0 }, "cut")
	for _, q := range quick.Topology(s.queue.Name).Queues {
		testenv.Eventually(t, patience, func() bool { return s.broker.Queue(t, q.Name).Exists }, "%s is there again", q.Name)
	}
}

// A Retrier around a handler of another queue's worker: nothing is copied, nothing handled, and the worker says why.
func TestWrongQueue(t *testing.T) {
	t.Parallel()
	s, other := newSetup(t), newSetup(t)
	v := newVisits()
	r := s.retrier(quick)
	stop := other.start(r.Handle(v.failing(always)), workqueue.WorkerConfig{})
	other.publish(1)
	testenv.Eventually(t, patience, func() bool {
		for _, state := range other.conn.State() {
			if strings.Contains(state.Reason, fmt.Sprintf("the Retrier of queue %q wraps a handler of queue %q", s.queue.Name, other.queue.Name)) {
				return true
			}
		}
		return false
	}, "State says why")
	require.NoError(t, stop())
	require.Zero(t, v.total())
	require.Equal(t, 1, other.depth(other.queue.Name))
	for _, q := range quick.Topology(s.queue.Name).Queues {
		require.Zero(t, s.depth(q.Name), q.Name)
	}
}

// In an ordered loop a Retrier copies nothing, since the copy would come back behind the message's successors.
func TestOrderedHandlersAreNotCopied(t *testing.T) {
	t.Parallel()
	t.Run("partitions", func(t *testing.T) {
		t.Parallel()
		s := newSetup(t)
		p := consistenthash.Partitions{Name: testenv.Name(t, "partitions"), Count: 2}
		require.NoError(t, s.conn.Declare(s.within(patience), p.Topology()))
		t.Cleanup(func() {
			for _, q := range p.Topology().Queues {
				s.broker.DeleteQueue(t, q.Name)
			}
		})
		r := s.retrier(quick)
		v := newVisits()
		h := func(_ context.Context, d amqp.Delivery) error {
			if v.add(d) < 3 && d.MessageId == "0" {
				return errors.New("not yet")
			}
			return nil
		}
		c, err := consistenthash.NewConsumer(s.conn, p, r.Handle(h), consistenthash.ConsumerConfig{})
		require.NoError(t, err)
		run(t, c)
		pub, err := consistenthash.NewPublisher(s.conn, p, reconnect.PublisherConfig{})
		require.NoError(t, err)
		for _, id := range []string{"0", "1", "2"} {
			require.NoError(t, pub.Publish(s.within(patience), "key", amqp.Publishing{MessageId: id}))
		}
		testenv.Eventually(t, patience, func() bool { return v.distinct() == 3 }, "all handled")
		runs := v.of("0")
		require.Len(t, runs, 3, "in its place, until it succeeded")
		require.True(t, v.of("1")[0].at.After(runs[2].at), "nothing overtook it")
		for _, run := range runs {
			require.Equal(t, 1, run.Attempt)
		}
		for _, q := range quick.Topology(s.queue.Name).Queues {
			require.Zero(t, s.depth(q.Name), q.Name)
		}
		require.Zero(t, s.depth(p.DeadLetterQueue()))
	})
	t.Run("a single active consumer", func(t *testing.T) {
		t.Parallel()
		broker := testenv.Shared(t)
		s := newSetupOn(t, broker, broker.URL(), workqueue.Queue{SingleActiveConsumer: true})
		v := newVisits()
		h := func(_ context.Context, d amqp.Delivery) error {
			if v.add(d) < 2 && d.MessageId == "0" {
				return errors.New("not yet")
			}
			if d.MessageId == "1" {
				return retry.Permanent(errors.New("never"))
			}
			return nil
		}
		s.start(s.retrier(quick).Handle(h), workqueue.WorkerConfig{})
		s.publish(3)
		dead := s.drain(s.queue.DeadLetterQueue(), 1)[0]
		require.Equal(t, "1", dead.MessageId)
		require.Equal(t, "rejected", dead.Headers["x-first-death-reason"], "by the broker: a permanent failure only leaves")
		testenv.Eventually(t, patience, func() bool { return v.distinct() == 3 }, "all handled")
		require.Len(t, v.of("0"), 2)
		s.empty(quick)
	})
}

// P50: what the broker moves while its target is gone waits, and arrives when that is there again, without a hot loop.
func TestMissingTargets(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	policy := retry.Policy{MaxAttempts: 2, InitialDelay: 500 * time.Millisecond}
	v := newVisits()
	// No worker handles it the first time: the queue has to be gone when the copy's time comes, and a worker's cannot be before the copy is sent.
	s.broker.DeleteQueue(t, s.queue.Name)
	first := s.retrier(policy).Handle(v.failing(2))
	require.NoError(t, first(t.Context(), amqp.Delivery{RoutingKey: s.queue.Name, MessageId: "0", Body: []byte("job 0")}))
	delay := s.queue.Name + ".retry.500"
	testenv.Eventually(t, patience, func() bool { return s.broker.Queue(t, delay).Ready == 0 }, "its time has come")
	require.NoError(t, s.conn.Declare(s.within(patience), s.queue.Topology()))
	stop := s.start(s.retrier(policy).Handle(v.failing(2)), workqueue.WorkerConfig{})
	testenv.Eventually(t, patience, func() bool { return v.total() == 2 }, "back in the queue") // 2 s in these tests, else 3 min
	require.Equal(t, 2, v.of("0")[1].Attempt)
	require.NoError(t, stop())

	// A handler without a Retrier fails while the dead-letter queue is gone.
	s.broker.DeleteQueue(t, s.queue.DeadLetterQueue())
	s.start(v.failing(always), workqueue.WorkerConfig{})
	s.publish(1)
	testenv.Eventually(t, patience, func() bool { return v.total() == 3 }, "failed")
	require.NoError(t, s.conn.Declare(s.within(patience), policy.Topology(s.queue.Name)))
	s.drain(s.queue.DeadLetterQueue(), 1)
	require.Equal(t, 3, v.total())
}
