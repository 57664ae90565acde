package retry_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/retry"
	"github.com/warrenmq/warren/workqueue"
)

// loop is a loop over the raw driver as a user would write it.
func (s *setup) loop(h retry.Handler) {
	s.t.Helper()
	ch, err := s.broker.Dial(s.t).Channel()
	require.NoError(s.t, err)
	require.NoError(s.t, ch.Qos(5, 0, false))
	deliveries, err := ch.Consume(s.queue.Name, "own", false, false, false, false, nil)
	require.NoError(s.t, err)
	var done sync.WaitGroup
	done.Go(func() {
		for d := range deliveries {
			switch err := h(context.Background(), d); {
			case err == nil:
				_ = d.Ack(false)
			case isNotNow(err):
				<-time.After(10 * time.Millisecond)
				_ = d.Nack(false, true)
			default:
				_ = d.Reject(false)
			}
		}
	})
	s.t.Cleanup(func() { _ = ch.Close(); done.Wait() })
}

// A Retrier works the same around a loop that is not ours.
func TestOwnLoopOverTheRawDriver(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	v := newVisits()
	h := func(_ context.Context, d amqp.Delivery) error {
		n := v.add(d)
		switch {
		case d.MessageId == "0":
			panic("always")
		case d.MessageId == "1":
			return retry.Permanent(errors.New("never"))
		case d.MessageId == "2" && n == 1:
			return notNow{}
		case n < 3:
			return errors.New("not yet")
		}
		return nil
	}
	s.loop(s.retrier(quick).Handle(h))
	s.publish(10)
	dead := s.drain(s.queue.DeadLetterQueue(), 2)
	require.ElementsMatch(t, []any{"panic", "permanent"}, []any{dead[0].Headers["warren-reason"], dead[1].Headers["warren-reason"]})
	testenv.Eventually(t, patience, func() bool { return v.total() == quick.MaxAttempts+1+8*3 }, "all attempts")
	s.empty(quick)
	attempts := attemptsOf(v)
	require.Equal(t, []int{1, 1, 2}, attempts["2"], "a run that says it was none does not count")
	require.Equal(t, []int{1, 2, 3}, attempts["3"])
	require.Contains(t, dead[0].Headers["warren-consumer"], s.name)
}

type notNow struct{}

func (notNow) Error() string { return "not now" }
func (notNow) NotNow() bool  { return true }

// A message of which no copy can be sent is left to the broker's own dead-lettering.
func TestUncopyable(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	conn := s.dialWith(reconnect.Config{Name: testenv.Name(t, "small"), MaxBody: 100})
	v := newVisits()
	s.loop(s.retrierOn(conn, quick).Handle(v.failing(always)))
	s.raw("", s.queue.Name, amqp.Publishing{MessageId: "m", Body: make([]byte, 101)})
	dead := s.drain(s.queue.DeadLetterQueue(), 1)[0]
	require.Equal(t, "rejected", dead.Headers["x-first-death-reason"])
	require.Equal(t, 1, v.total())

	err := s.retrierOn(conn, quick).Handle(func(context.Context, amqp.Delivery) error { return errors.New("no") })(t.Context(), amqp.Delivery{Body: make([]byte, 101)})
	require.ErrorContains(t, err, "retry: no copy can be sent: ")
	require.False(t, isNotNow(err))
}

// A handler that was cut off, at a stop or by the loss of its channel, has not failed.
func TestCutOffIsNoFailure(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	r := s.retrier(quick)
	ctx, cancel := context.WithCancel(t.Context())
	h := r.Handle(func(ctx context.Context, _ amqp.Delivery) error { cancel(); return ctx.Err() })
	require.True(t, isNotNow(h(ctx, amqp.Delivery{})))
	require.NoError(t, r.Handle(func(context.Context, amqp.Delivery) error { return nil })(ctx, amqp.Delivery{}), "one that has succeeded is done")

	// One that has used up its own time has failed.
	stop := s.start(r.Handle(func(ctx context.Context, d amqp.Delivery) error {
		if retry.InfoOf(d).Attempt == 1 {
			<-ctx.Done()
			return ctx.Err()
		}
		return retry.Permanent(errors.New("enough"))
	}), workqueue.WorkerConfig{HandlerTimeout: 50 * time.Millisecond})
	s.publish(1)
	dead := s.drain(s.queue.DeadLetterQueue(), 1)[0]
	require.Equal(t, 2, retry.InfoOf(dead).Attempt)

	// One that ignores the stop until its grace is over goes back to the queue, uncounted.
	require.NoError(t, stop())
	began := make(chan bool, 10)
	stop = s.start(r.Handle(func(ctx context.Context, _ amqp.Delivery) error { began <- true; <-ctx.Done(); return ctx.Err() }),
		workqueue.WorkerConfig{ShutdownTimeout: 50 * time.Millisecond})
	s.publish(1)
	receive(t, began, "started")
	require.NoError(t, stop())
	back := s.drain(s.queue.Name, 1)[0]
	require.NotContains(t, back.Headers, "warren-attempt")
	s.empty(quick)
}

// Each message of a batch goes its own way.
func TestHandleBatch(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	v := newVisits()
	const n = 40
	h := func(_ context.Context, ds []amqp.Delivery) error {
		errs := make(reconnect.BatchError, len(ds))
		for i, d := range ds {
			id, _ := strconv.Atoi(d.MessageId)
			switch runs := v.add(d); {
			case id%4 == 1 && runs < 3:
				errs[i] = errors.New("not yet")
			case id%4 == 2:
				errs[i] = retry.Permanent(errors.New("never"))
			case id == 4 && runs == 1:
				errs[i] = notNow{}
			}
		}
		return fmt.Errorf("batch: %w", errs)
	}
	w, err := workqueue.NewBatchWorker(s.conn, s.queue, s.retrier(quick).HandleBatch(h), workqueue.WorkerConfig{BatchSize: 10})
	require.NoError(t, err)
	run(t, w)
	s.publish(n)
	for _, d := range s.drain(s.queue.DeadLetterQueue(), n/4) {
		require.Equal(t, "permanent", d.Headers["warren-reason"])
	}
	testenv.Eventually(t, patience, func() bool { return v.total() == n/4*(1+3+1+1)+1 }, "all attempts")
	s.empty(quick)
	attempts := attemptsOf(v)
	require.Equal(t, []int{1, 2, 3}, attempts["1"])
	require.Equal(t, []int{1, 1}, attempts["4"])
}

// A batch that fails as a whole, or panics, is a failure of each of its messages.
func TestHandleBatchFailsAsAWhole(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	r := s.retrier(quick)
	v := newVisits()
	h := func(_ context.Context, ds []amqp.Delivery) error {
		for _, d := range ds {
			v.add(d)
		}
		if retry.InfoOf(ds[0]).Attempt == 1 {
			panic("boom")
		}
		return errors.New("no")
	}
	w, err := workqueue.NewBatchWorker(s.conn, s.queue, r.HandleBatch(h), workqueue.WorkerConfig{BatchSize: 5})
	require.NoError(t, err)
	run(t, w)
	s.publish(10)
	for _, d := range s.drain(s.queue.DeadLetterQueue(), 10) {
		require.Equal(t, quick.MaxAttempts, retry.InfoOf(d).Attempt)
	}
	for id, attempts := range attemptsOf(v) {
		require.Equal(t, []int{1, 2, 3, 4}, attempts, id)
	}

	// Called for a queue that is not its own, it calls nothing.
	other := newSetup(t)
	w, err = workqueue.NewBatchWorker(other.conn, other.queue, r.HandleBatch(h), workqueue.WorkerConfig{})
	require.NoError(t, err)
	run(t, w)
	total := v.total()
	other.publish(1)
	testenv.Eventually(t, patience, func() bool {
		for _, state := range other.conn.State() {
			if strings.Contains(state.Reason, "wraps a handler of queue") {
				return true
			}
		}
		return false
	}, "State says why")
	require.Equal(t, total, v.total())
}

// Without the right to write to amq.default, everything goes through the queue's own dead-letter exchange.
func TestDeadLetterExchange(t *testing.T) {
	t.Parallel()
	broker := testenv.Shared(t)
	dlx := testenv.Name(t, "dlx")
	admin := newSetupOn(t, broker, broker.URL(), workqueue.Queue{DeadLetterExchange: dlx})
	user := testenv.Name(t, "user")
	own := "^(" + strings.ReplaceAll(admin.queue.Name, ".", `\.`) + `(\..*)?|` + strings.ReplaceAll(dlx, ".", `\.`) + ")$"
	s := *admin
	s.url = broker.AddUser(t, user, testenv.Secret())
	broker.SetPermissions(t, user, own, own, own)
	s.conn = s.dial(testenv.Name(t, "limited"))
	policy := quick
	policy.DeadLetterExchange = dlx
	v := newVisits()
	s.start(s.retrier(policy).Handle(v.failing(3)), workqueue.WorkerConfig{})
	admin.publish(1)
	testenv.Eventually(t, patience, func() bool { return v.total() == 3 }, "three attempts")
	require.Equal(t, []int{1, 2, 3}, attemptsOf(v)["0"])
	require.Empty(t, v.of("0")[2].Exchange, "as first delivered")
	s.empty(policy)
	s.start(s.retrier(policy).Handle(func(context.Context, amqp.Delivery) error { return retry.Permanent(errors.New("never")) }), workqueue.WorkerConfig{})
	require.Zero(t, s.depth(s.queue.DeadLetterQueue()))

	_, err := retry.New(s.within(patience), s.conn, s.queue.Name, quick)
	var refused *reconnect.TopologyError
	require.ErrorAs(t, err, &refused, "delay queues that lead through amq.default may not be declared")
}
