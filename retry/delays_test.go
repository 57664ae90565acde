package retry_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
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

// A17: a thousand messages with delays in random order, connections cut in the middle, then the broker restarted: none is
// lost, none early, each is as it was.
func TestA17DelaysInRandomOrder(t *testing.T) {
	t.Parallel() // with what does not need the node
	node := testenv.Node(t)
	s := newSetupOn(t, node.Broker, node.URL(), workqueue.Queue{})
	const n = 1000
	policy := retry.Policy{MaxAttempts: -1, InitialDelay: 100 * time.Millisecond, Multiplier: 3, MaxDelay: 2700 * time.Millisecond}
	rungs := policy.Delays()
	require.Len(t, rungs, 4)
	var (
		mu    sync.Mutex
		asked = map[string]time.Time{} // the earliest moment of the next attempt, by id
		early []string
		wrong []string
		done  = map[string]bool{}
	)
	x := s.exchange(amqp.ExchangeTopic, "orders.#")
	h := func(_ context.Context, d amqp.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		now := time.Now()
		if d.Exchange != x || d.RoutingKey != "orders."+d.MessageId || string(d.Body) != "body "+d.MessageId || d.Priority != 3 ||
			d.DeliveryMode != amqp.Persistent || d.CorrelationId != "c"+d.MessageId || d.Headers["n"] != d.MessageId {
			wrong = append(wrong, fmt.Sprintf("%+v", d))
		}
		if until, failed := asked[d.MessageId]; failed {
			if retry.InfoOf(d).Attempt > 1 {
				if now.Before(until) {
					early = append(early, fmt.Sprintf("%s by %v", d.MessageId, until.Sub(now)))
				}
				done[d.MessageId] = true
				return nil
			}
			// its acknowledgement was lost: a copy is on its way all the same
		}
		delay := rungs[rand.IntN(len(rungs))] - time.Duration(rand.IntN(20))*time.Millisecond
		if until, failed := asked[d.MessageId]; !failed || now.Add(delay).Before(until) {
			asked[d.MessageId] = now.Add(delay)
		}
		return retry.After(errors.New("not yet"), delay)
	}
	s.start(s.retrier(policy).Handle(h), workqueue.WorkerConfig{Concurrency: 4, Prefetch: 50})
	msgs := make([]reconnect.Message, n)
	for i := range msgs {
		id := strconv.Itoa(i)
		msgs[i] = reconnect.Message{Exchange: x, Key: "orders." + id, Publishing: amqp.Publishing{MessageId: id, Body: []byte("body " + id),
			Priority: 3, CorrelationId: "c" + id, Headers: amqp.Table{"n": id}}}
	}
	pub, err := s.conn.NewPublisher(reconnect.PublisherConfig{})
	require.NoError(t, err)
	require.NoError(t, pub.PublishBatch(s.within(patience), msgs))
	node.CutConnections(t, s.name)
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(done)
	}
	testenv.Eventually(t, patience, func() bool { return count() > n/3 }, "a third")
	node.Restart()
	testenv.Eventually(t, 2*patience, func() bool { return count() == n }, "all of them")
	s.empty(policy)
	mu.Lock()
	defer mu.Unlock()
	require.Empty(t, early)
	require.Empty(t, wrong)
	require.Zero(t, s.depth(s.queue.DeadLetterQueue()))
}

// P44: short delays never wait behind long ones.
func TestP44ShortDelaysBesideLongOnes(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	policy := retry.Policy{MaxAttempts: 3, InitialDelay: 200 * time.Millisecond, Multiplier: 25}
	v := newVisits()
	h := func(_ context.Context, d amqp.Delivery) error {
		if v.add(d) > 1 {
			return nil
		}
		if d.Type == "long" {
			return retry.After(errors.New("no"), 5*time.Second)
		}
		return retry.After(errors.New("no"), 200*time.Millisecond)
	}
	s.start(s.retrier(policy).Handle(h), workqueue.WorkerConfig{})
	const n = 20
	for i := range n {
		kind := []string{"long", "short"}[i%2]
		s.send(amqp.Publishing{MessageId: strconv.Itoa(i), Type: kind})
	}
	testenv.Eventually(t, patience, func() bool { return v.total() == 2*n }, "all again")
	slowest := map[string]time.Duration{}
	for i := range n {
		runs := v.of(strconv.Itoa(i))
		gap := runs[1].at.Sub(runs[0].at)
		slowest[runs[0].Type] = max(slowest[runs[0].Type], gap)
		require.GreaterOrEqual(t, gap, map[string]time.Duration{"short": 200 * time.Millisecond, "long": 5 * time.Second}[runs[0].Type])
	}
	require.Less(t, slowest["short"], 5*time.Second, "a short delay waited for a long one")
	t.Logf("slowest: short %v, long %v", slowest["short"], slowest["long"])
}

// From RabbitMQ 4.0 on a quorum queue lets go of two messages with a high priority before one without, also when those are
// not due and this is: with their priority in the delay queue a few of them would hold up all others, for seconds. So
// copies leave in the order in which they came. (The queue is classic, to keep them as they arrive.)
func TestPrioritiesDoNotHoldUpDelays(t *testing.T) {
	t.Parallel()
	broker := testenv.Shared(t)
	s := newSetupOn(t, broker, broker.URL(), workqueue.Queue{Classic: true})
	const low, high = 20, 20
	h := s.retrier(retry.Policy{MaxAttempts: 2, InitialDelay: 2 * time.Second}).Handle(func(context.Context, amqp.Delivery) error { return errors.New("no") })
	var want []string
	for i := range low + high {
		d := amqp.Delivery{RoutingKey: s.queue.Name, MessageId: "low " + strconv.Itoa(i)}
		if i >= low {
			d.MessageId, d.Priority = "high "+strconv.Itoa(i), 9
		}
		require.NoError(t, h(t.Context(), d))
		want = append(want, d.MessageId)
	}
	var got []string
	back := s.drain(s.queue.Name, low+high)
	for _, d := range back {
		got = append(got, d.MessageId)
	}
	require.Equal(t, want, got)
	require.EqualValues(t, 4, back[low].Priority)
	require.EqualValues(t, 9, back[low].Headers["warren-priority"])
}

// An After longer than every delay takes several, without a run of the handler and without counting, and is never early.
func TestAfterLongerThanEveryDelay(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	v := newVisits()
	h := func(_ context.Context, d amqp.Delivery) error {
		if v.add(d) > 1 {
			return nil
		}
		return fmt.Errorf("busy: %w", retry.After(errors.New("429"), 700*time.Millisecond))
	}
	s.start(s.retrier(quick).Handle(h), workqueue.WorkerConfig{})
	s.publish(1)
	testenv.Eventually(t, patience, func() bool { return v.total() == 2 }, "the second run")
	runs := v.of("0")
	require.GreaterOrEqual(t, runs[1].at.Sub(runs[0].at), 700*time.Millisecond)
	require.Equal(t, 2, runs[1].Attempt)
	require.Equal(t, "busy: 429", runs[1].LastError)
	require.Equal(t, runs[0].Delivery.RoutingKey, runs[1].RoutingKey)
	t.Logf("back after %v", runs[1].at.Sub(runs[0].at))
	s.empty(quick)
}

// Two versions of a service with different ladders share a queue: neither disturbs the other, and attempts go on counting
// from one to the other.
func TestTwoLaddersSideBySide(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	next := retry.Policy{MaxAttempts: 3, InitialDelay: 70 * time.Millisecond, Multiplier: 3, Jitter: 0.5}
	v := newVisits()
	other := s.dial(testenv.Name(t, "next"))
	s.start(s.retrier(quick).Handle(v.failing(always)), workqueue.WorkerConfig{})
	s.startOn(other, s.retrierOn(other, next).Handle(v.failing(always)), workqueue.WorkerConfig{})
	const n = 30
	s.publish(n)
	dead := s.drain(s.queue.DeadLetterQueue(), n)
	s.empty(quick)
	s.empty(next)
	for _, d := range dead {
		runs := v.of(d.MessageId)
		require.GreaterOrEqual(t, len(runs), next.MaxAttempts)
		require.LessOrEqual(t, len(runs), quick.MaxAttempts)
		attempts := make([]int, len(runs))
		for i, run := range runs {
			attempts[i] = run.Attempt
		}
		require.True(t, slices.IsSortedFunc(attempts, cmp.Compare[int]))
		require.Contains(t, []int{len(runs), next.MaxAttempts}, retry.InfoOf(d).Attempt, "a policy knows no more than its own")
	}
}

// Later sends messages that arrive when their time has come, as a first attempt.
func TestLater(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	policy := retry.Policy{MaxAttempts: 3, InitialDelay: 100 * time.Millisecond, Multiplier: 5}
	r := s.retrier(policy)
	v := newVisits()
	s.start(r.Handle(v.failing(1)), workqueue.WorkerConfig{})
	began := time.Now()
	for id, d := range map[string]time.Duration{"now": 0, "100": 100 * time.Millisecond, "101": 101 * time.Millisecond, "500": 500 * time.Millisecond} {
		require.NoError(t, r.Later(s.within(patience), amqp.Publishing{MessageId: id, Priority: 7, Body: []byte(id),
			Headers: amqp.Table{"mine": "kept", "warren-attempt": int64(3)}}, d))
	}
	require.NoError(t, r.Later(s.within(patience), amqp.Publishing{Type: "without an id"}, 0))
	testenv.Eventually(t, patience, func() bool { return v.total() == 5 }, "all of them")
	for id, want := range map[string]time.Duration{"now": 100 * time.Millisecond, "100": 100 * time.Millisecond, "101": 500 * time.Millisecond, "500": 500 * time.Millisecond} {
		run := v.of(id)[0]
		require.GreaterOrEqual(t, run.at.Sub(began), want, id)
		require.Equal(t, 1, run.Attempt)
		require.Equal(t, amqp.Table{"mine": "kept"}, run.Delivery.Headers)
		require.Equal(t, s.queue.Name, run.RoutingKey)
		require.EqualValues(t, 7, run.Priority)
	}
	for name, bad := range map[string]struct {
		msg amqp.Publishing
		d   time.Duration
	}{
		"d: 501ms is longer than the longest delay, 500ms": {d: 501 * time.Millisecond},
		"Expiration: ":   {msg: amqp.Publishing{Expiration: "5"}},
		"Headers: CC: ":  {msg: amqp.Publishing{Headers: amqp.Table{"CC": []any{"a"}}}},
		"Headers: BCC: ": {msg: amqp.Publishing{Headers: amqp.Table{"BCC": []any{"a"}}}},
		"MessageId: 300": {msg: amqp.Publishing{MessageId: string(make([]byte, 300))}},
	} {
		err := r.Later(s.within(patience), bad.msg, bad.d)
		require.ErrorContains(t, err, name)
		var permanent interface{ Permanent() bool }
		require.True(t, errors.As(err, &permanent) && permanent.Permanent())
	}
	err := s.retrier(retry.Policy{MaxAttempts: 1}).Later(s.within(patience), amqp.Publishing{}, 0)
	require.ErrorContains(t, err, "d: the policy has no delays")
}
