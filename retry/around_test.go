package retry_test

import (
	"context"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/pubsub"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/retry"
	"github.com/warrenmq/warren/routing/direct"
	"github.com/warrenmq/warren/routing/topic"
	"github.com/warrenmq/warren/workqueue"
)

// Around a subscription's handler a failure comes back to that subscription alone, with the key that the event had.
func TestAroundSubscribers(t *testing.T) {
	t.Parallel()
	type subscription interface{ Topology() reconnect.Topology }
	for name, open := range map[string]func(s *setup, x, queue string, wrap func(retry.Handler) retry.Handler, h retry.Handler) (runner, subscription, error){
		"pubsub": func(s *setup, x, queue string, wrap func(retry.Handler) retry.Handler, h retry.Handler) (runner, subscription, error) {
			sub := pubsub.Subscription{Exchange: pubsub.Exchange{Name: x}, Queue: queue}
			r, err := pubsub.NewSubscriber(s.conn, sub, wrap(h), pubsub.SubscriberConfig{})
			return r, sub, err
		},
		"direct": func(s *setup, x, queue string, wrap func(retry.Handler) retry.Handler, h retry.Handler) (runner, subscription, error) {
			sub := direct.Subscription{Exchange: direct.Exchange{Name: x}, Queue: queue, Keys: []string{"order.created"}}
			r, err := direct.NewSubscriber(s.conn, sub, wrap(direct.Mux{"order.created": h}.Handle), direct.SubscriberConfig{})
			return r, sub, err
		},
		"topic": func(s *setup, x, queue string, wrap func(retry.Handler) retry.Handler, h retry.Handler) (runner, subscription, error) {
			sub := topic.Subscription{Exchange: topic.Exchange{Name: x}, Queue: queue, Patterns: []string{"order.*"}}
			r, err := topic.NewSubscriber(s.conn, sub, wrap(topic.Mux{"order.*": h}.Handle), topic.SubscriberConfig{})
			return r, sub, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSetup(t)
			x, both := testenv.Name(t, "x"), newVisits()
			for i, queue := range []string{s.queue.Name + ".failing", s.queue.Name + ".fine"} {
				r, err := retry.New(s.within(patience), s.conn, queue, quick)
				require.NoError(t, err)
				h := func(ctx context.Context, d amqp.Delivery) error {
					d.MessageId = queue
					return both.failing(3-2*i)(ctx, d)
				}
				sub, topology, err := open(s, x, queue, r.Handle, h)
				require.NoError(t, err)
				t.Cleanup(func() {
					for _, q := range append(topology.Topology().Queues, quick.Topology(queue).Queues...) {
						s.broker.DeleteQueue(t, q.Name)
					}
				})
				run(t, sub)
			}
			s.raw(x, "order.created", amqp.Publishing{MessageId: "m"})
			testenv.Eventually(t, patience, func() bool { return both.total() == 4 }, "three runs here, one there")
			require.Len(t, both.of(s.queue.Name+".fine"), 1)
			for _, run := range both.of(s.queue.Name + ".failing") {
				require.Equal(t, x, run.Exchange)
				require.Equal(t, "order.created", run.RoutingKey, "a mux finds its handler again")
			}
			for _, queue := range []string{s.queue.Name + ".failing", s.queue.Name + ".fine"} {
				testenv.Eventually(t, patience, func() bool { return s.depth(queue) == 0 }, "%s empty", queue)
				require.Zero(t, s.depth(queue+".dlq"))
			}
		})
	}
}

// A classic queue with priorities gets its retries back as well, at priority 4 at most.
func TestAroundPriorities(t *testing.T) {
	t.Parallel()
	broker := testenv.Shared(t)
	s := newSetupOn(t, broker, broker.URL(), workqueue.Queue{MaxPriority: 9})
	v := newVisits()
	s.start(s.retrier(quick).Handle(v.failing(3)), workqueue.WorkerConfig{})
	s.send(amqp.Publishing{MessageId: "high", Priority: 9}, amqp.Publishing{MessageId: "low", Priority: 2})
	testenv.Eventually(t, patience, func() bool { return v.total() == 6 }, "three attempts each")
	s.empty(quick)
	for i := range 3 {
		require.EqualValues(t, 9, v.of("high")[i].Priority)
		require.EqualValues(t, 2, v.of("low")[i].Priority)
	}
	require.Zero(t, s.depth(s.queue.DeadLetterQueue()))
}

// The rights that the package comment names are enough.
func TestRights(t *testing.T) {
	t.Parallel()
	admin := newSetup(t)
	user := testenv.Name(t, "user")
	own := "^" + strings.ReplaceAll(admin.queue.Name, ".", `\.`) + `(\.dlq|\.retry\..*)?$`
	s := *admin
	s.url = s.broker.AddUser(t, user, testenv.Secret())
	s.broker.SetPermissions(t, user, own, strings.TrimSuffix(own, "$")+"$|^amq\\.default$", own)
	s.conn = s.dial(testenv.Name(t, "limited"))
	v := newVisits()
	s.start(s.retrier(quick).Handle(v.failing(always)), workqueue.WorkerConfig{})
	admin.publish(1)
	s.drain(s.queue.DeadLetterQueue(), 1)
	require.Equal(t, quick.MaxAttempts, v.total())
}

// What an operator owns is only looked for.
func TestPassive(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	passive := quick
	passive.Declare = reconnect.Passive
	_, err := retry.New(s.within(patience), s.conn, s.queue.Name, passive)
	var missing *amqp.Error
	require.ErrorAs(t, err, &missing)
	require.Equal(t, amqp.NotFound, missing.Code)
	s.retrier(quick)
	other := s.dial(testenv.Name(t, "passive"))
	v := newVisits()
	s.startOn(other, s.retrierOn(other, passive).Handle(v.failing(2)), workqueue.WorkerConfig{})
	s.publish(1)
	testenv.Eventually(t, patience, func() bool { return v.total() == 2 }, "again")
	s.empty(quick)
}

func TestDelayQueueWithOtherArguments(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	s.cleanUp(quick)
	ch, err := s.broker.Dial(t).Channel()
	require.NoError(t, err)
	_, err = ch.QueueDeclare(s.queue.Name+".retry.50", true, false, false, false, amqp.Table{"x-queue-type": "quorum", "x-message-ttl": int64(60)})
	require.NoError(t, err)
	_, err = retry.New(s.within(patience), s.conn, s.queue.Name, quick)
	var fault *reconnect.TopologyError
	require.ErrorAs(t, err, &fault)
	require.Contains(t, fault.Entity, ".retry.50")
	require.ErrorContains(t, err, s.queue.Name)
}

func TestNilHandler(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	r := s.retrier(quick)
	_, err := workqueue.NewWorker(s.conn, s.queue, r.Handle(nil), workqueue.WorkerConfig{})
	require.ErrorContains(t, err, "Handler: missing")
	_, err = workqueue.NewBatchWorker(s.conn, s.queue, r.HandleBatch(nil), workqueue.WorkerConfig{})
	require.ErrorContains(t, err, "Handler: missing")
}
