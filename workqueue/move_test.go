package workqueue_test

import (
	"context"
	"fmt"
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

// within bounds a call of Move that must come to its end.
func (s *setup) move(from, to workqueue.Queue) (int, error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*patience)
	defer cancel()
	return workqueue.Move(ctx, s.conn, from, to)
}

// newMove is newSetup for a queue that is moved to another name, or replaced when that is its own.
func newMove(t *testing.T, q workqueue.Queue) *setup {
	t.Helper()
	s := newSetup(t, q)
	t.Cleanup(func() {
		s.broker.DeleteQueue(t, s.queue.Name+".moving")
		s.broker.DeleteQueue(t, s.queue.Name+".v2")
		s.broker.DeleteQueue(t, s.queue.Name+".v2.dlq")
	})
	return s
}

// handleAll runs a worker of q until it has seen n different messages, and returns how often each of them came and in which
// order they first did.
func (s *setup) handleAll(q workqueue.Queue, n int) (count map[string]int, order []string) {
	s.t.Helper()
	var mu sync.Mutex
	count = map[string]int{}
	on := *s
	on.queue = q
	stop := on.start(s.dial(testenv.Name(s.t, "after")), func(_ context.Context, d amqp.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		if count[d.MessageId]++; count[d.MessageId] == 1 {
			order = append(order, d.MessageId)
		}
		return nil
	}, workqueue.WorkerConfig{Prefetch: 100})
	testenv.Eventually(s.t, patience, func() bool { mu.Lock(); defer mu.Unlock(); return len(count) >= n }, "%d messages", n)
	require.NoError(s.t, stop())
	return count, order
}

// The usual case, and each other kind of change: all messages are there afterwards, once, in their order, with what they
// were.
func TestMoveReplacesTheQueue(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ from, to workqueue.Queue }{
		"classic to quorum":                 {workqueue.Queue{Classic: true}, workqueue.Queue{}},
		"priorities to quorum":              {workqueue.Queue{MaxPriority: 3}, workqueue.Queue{}},
		"quorum to another delivery limit":  {workqueue.Queue{}, workqueue.Queue{DeliveryLimit: 5}},
		"quorum to classic":                 {workqueue.Queue{SingleActiveConsumer: true}, workqueue.Queue{Classic: true}},
		"classic, of which only that known": {workqueue.Queue{Classic: true, Declare: reconnect.Passive}, workqueue.Queue{TTL: time.Hour}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const n = 700 // more than three windows
			existing := tc.from
			existing.Declare = reconnect.Active
			s := newMove(t, existing)
			tc.from.Name, tc.to.Name = s.queue.Name, s.queue.Name
			s.publish(n)
			moved, err := s.move(tc.from, tc.to)
			require.NoError(t, err)
			require.Equal(t, n, moved)
			s.queue = tc.to
			info := s.broker.Queue(t, tc.to.Name)
			require.Equal(t, map[bool]string{true: "classic", false: "quorum"}[tc.to.Classic], info.Type)
			require.Equal(t, n, info.Ready)
			require.False(t, s.broker.Queue(t, tc.to.Name+".moving").Exists)

			again, err := s.move(tc.from, tc.to)
			require.NoError(t, err)
			require.Zero(t, again, "all is done")
			count, order := s.handleAll(tc.to, n)
			for i := range n {
				require.Equal(t, 1, count[strconv.Itoa(i)])
				require.Equal(t, strconv.Itoa(i), order[i])
			}
		})
	}
}

// A classic queue becomes a quorum queue of the same name while the move's connections are cut all the time, and it is broken off and
// begun again. Producers who have not ended, as they should have, keep it from deleting anything; when they have, it comes
// to its end, and everything that was confirmed is there.
func TestMoveClassicToQuorumUnderLoad(t *testing.T) {
	t.Parallel()
	const backlog = 2000
	s := newMove(t, workqueue.Queue{Classic: true})
	from, to := s.queue, workqueue.Queue{Name: s.queue.Name}
	var handled atomic.Int64
	stop := s.start(s.dial(testenv.Name(t, "old")), func(context.Context, amqp.Delivery) error { handled.Add(1); return nil }, workqueue.WorkerConfig{Concurrency: 2})
	s.publish(50)
	testenv.Eventually(t, patience, func() bool { return handled.Load() == 50 }, "the old worker works; what it only holds would come back")
	require.NoError(t, stop())
	msgs := make([]amqp.Publishing, backlog)
	for i := range msgs {
		msgs[i] = amqp.Publishing{MessageId: fmt.Sprintf("backlog-%d", i)}
	}
	require.NoError(t, s.producer(reconnect.PublisherConfig{}).PublishBatch(t.Context(), msgs))
	halt := s.produce(from)

	mover := s.dial(testenv.Name(t, "mover"))
	calls, began := 0, time.Now()
	move := func(limit time.Duration) error {
		calls++
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		cut := time.AfterFunc(min(limit/3, time.Second), func() { s.broker.CutConnections(t, mover.Config().Name+"/") })
		defer cut.Stop()
		_, err := workqueue.Move(ctx, mover, from, to)
		return err
	}
	for time.Since(began) < 3*time.Second { // longer than a queue is quiet before it is deleted
		require.Error(t, move(time.Second), "producers go on")
	}
	require.Equal(t, "classic", s.broker.Queue(t, from.Name).Type, "nothing is deleted")
	load := halt()
	for _, limit := range []time.Duration{time.Second, 2500 * time.Millisecond, 4 * time.Second} { // broken off at different places
		_ = move(limit)
	}
	require.NoError(t, move(2*patience))
	t.Logf("moved by %d calls; %d messages were confirmed meanwhile", calls, load)

	require.Equal(t, "quorum", s.broker.Queue(t, to.Name).Type)
	require.False(t, s.broker.Queue(t, to.Name+".moving").Exists)
	count, _ := s.handleAll(to, backlog+load)
	require.Len(t, count, backlog+load)
	require.Zero(t, s.broker.Queue(t, to.DeadLetterQueue()).Ready)
}

// produce publishes to q, some hundred messages a second, until the returned function is called, which tells how many were
// confirmed.
func (s *setup) produce(q workqueue.Queue) (halt func() int) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	conn := s.dial(testenv.Name(s.t, "producing"))
	var confirmed atomic.Int64
	var producers sync.WaitGroup
	for p := range 3 {
		producer, err := workqueue.NewProducer(conn, q, reconnect.PublisherConfig{})
		require.NoError(s.t, err)
		producers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				if err := producer.Publish(context.WithoutCancel(ctx), amqp.Publishing{MessageId: fmt.Sprintf("load-%d-%d", p, i)}); err != nil {
					s.t.Errorf("publish: %v", err)
					return
				}
				confirmed.Add(1)
				wait(ctx, 10*time.Millisecond)
			}
		})
	}
	return func() int {
		cancel()
		producers.Wait()
		return int(confirmed.Load())
	}
}

// Under another name everybody goes on: a producer that is sent to the new queue in the middle, workers of both, while the
// connections are cut.
func TestMoveToAnotherNameUnderLoad(t *testing.T) {
	t.Parallel()
	s := newMove(t, workqueue.Queue{Classic: true})
	from, to := s.queue, workqueue.Queue{Name: s.queue.Name + ".v2"}
	var mu sync.Mutex
	seen := map[string]bool{}
	handler := func(_ context.Context, d amqp.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		seen[d.MessageId] = true
		return nil
	}
	s.publish(1500)
	on := *s
	on.queue = to
	stopNew := on.start(s.dial(testenv.Name(t, "new")), handler, workqueue.WorkerConfig{Prefetch: 20})
	stopOld := s.start(s.dial(testenv.Name(t, "old")), slow(handler), workqueue.WorkerConfig{})

	confirmed := map[string]bool{}
	var producing sync.WaitGroup
	producing.Go(func() {
		conn := s.dial(testenv.Name(t, "producing"))
		for i := range 600 {
			q := from
			if i >= 300 {
				q = to
			}
			p, err := workqueue.NewProducer(conn, q, reconnect.PublisherConfig{})
			id := fmt.Sprintf("load-%d", i)
			if err == nil {
				err = p.Publish(t.Context(), amqp.Publishing{MessageId: id})
			}
			if err != nil {
				t.Errorf("publish: %v", err)
				return
			}
			confirmed[id] = true
		}
	})
	for i := range 4 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i+1)*100*time.Millisecond)
		_, _ = workqueue.Move(ctx, s.conn, from, to) // broken off, or not
		cancel()
		s.broker.CutConnections(t, s.name+"/")
	}
	producing.Wait()
	_, err := s.move(from, to)
	require.NoError(t, err)
	testenv.Eventually(t, patience, func() bool { mu.Lock(); defer mu.Unlock(); return len(seen) == 1500+600 }, "all handled")
	require.NoError(t, stopOld())
	require.NoError(t, stopNew())
	require.Zero(t, s.broker.Queue(t, from.Name).Ready)
	require.True(t, s.broker.Queue(t, from.Name).Exists, "it is not deleted")
	for id := range confirmed {
		require.True(t, seen[id], id)
	}
}

func slow(h workqueue.Handler) workqueue.Handler {
	return func(ctx context.Context, d amqp.Delivery) error {
		wait(ctx, 5*time.Millisecond)
		return h(ctx, d)
	}
}

// wait returns after d or when ctx ends.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func TestMoveRefusesWhileThereAreWorkers(t *testing.T) {
	t.Parallel()
	s := newMove(t, workqueue.Queue{Classic: true})
	mover := s.dialWith(reconnect.Config{Name: testenv.Name(t, "mover"), Heartbeat: time.Second})
	blocked := make(chan struct{})
	stop := s.start(s.conn, func(ctx context.Context, _ amqp.Delivery) error {
		select {
		case <-blocked:
		case <-ctx.Done():
		}
		return nil
	}, workqueue.WorkerConfig{})
	s.publish(3)
	_, err := workqueue.Move(t.Context(), mover, s.queue, workqueue.Queue{Name: s.queue.Name})
	require.ErrorContains(t, err, "has 1 consumers: end its workers first")
	require.Equal(t, "classic", s.broker.Queue(t, s.queue.Name).Type)
	require.False(t, s.broker.Queue(t, s.queue.Name+".moving").Exists, "nothing was changed")
	close(blocked)
	require.NoError(t, stop())
}

// A queue with a limit takes what fits, and the rest as soon as its workers make room.
func TestMoveIntoAFullQueueWaits(t *testing.T) {
	t.Parallel()
	const n = 60
	s := newMove(t, workqueue.Queue{})
	s.publish(n)
	to := workqueue.Queue{Name: s.queue.Name + ".v2", MaxLength: 20}
	type result struct {
		moved int
		err   error
	}
	done := make(chan result, 1)
	go func() {
		moved, err := s.move(s.queue, to)
		done <- result{moved, err}
	}()
	testenv.Eventually(t, patience, func() bool { return s.broker.Queue(t, to.Name).Ready >= 20 }, "full")
	count, _ := s.handleAll(to, n)
	require.Len(t, count, n)
	r := <-done
	require.NoError(t, r.err)
	require.Equal(t, n, r.moved)
}

func TestMoveFaults(t *testing.T) {
	t.Parallel()
	_, err := workqueue.Move(t.Context(), nil, workqueue.Queue{}, workqueue.Queue{})
	require.ErrorContains(t, err, "conn: nil")
	s := newMove(t, workqueue.Queue{})
	_, err = s.move(workqueue.Queue{}, workqueue.Queue{Name: "q", Declare: reconnect.Passive})
	require.ErrorContains(t, err, "Name: empty")
	require.ErrorContains(t, err, "Declare: must be Active")

	_, err = s.move(workqueue.Queue{Name: s.queue.Name + ".nowhere"}, s.queue)
	var missing *amqp.Error
	require.ErrorAs(t, err, &missing)
	require.Equal(t, amqp.NotFound, missing.Code)

	s.publish(3)
	wrong := s.queue
	wrong.DeliveryLimit = 7
	to := s.queue
	to.DeliveryLimit = 9
	_, err = s.move(wrong, to)
	require.ErrorContains(t, err, "neither as from nor as to")
	require.Equal(t, 3, s.broker.Queue(t, s.queue.Name).Ready)
}

// What came from others and is more than we send stays where it is, and is named.
func TestHostileMessageInAMove(t *testing.T) {
	t.Parallel()
	s := newMove(t, workqueue.Queue{Classic: true})
	s.publish(2)
	s.raw(amqp.Publishing{MessageId: "deep", Headers: nested(20)})
	_, err := s.move(s.queue, workqueue.Queue{Name: s.queue.Name})
	require.ErrorContains(t, err, `message "deep"`)
	require.ErrorContains(t, err, "nested deeper")
	testenv.Eventually(t, patience, func() bool { return s.broker.Queue(t, s.queue.Name).Ready == 1 }, "it alone has stayed")
	require.Equal(t, 2, s.broker.Queue(t, s.queue.Name+".moving").Ready, "the others are there once")
	require.Equal(t, "classic", s.broker.Queue(t, s.queue.Name).Type)
}

// Without the right to read the queue it ends, and says so.
func TestMoveWithoutTheRight(t *testing.T) {
	t.Parallel()
	s := newMove(t, workqueue.Queue{Classic: true})
	s.publish(1)
	user := testenv.Name(t, "user")
	on := *s
	on.url = s.broker.AddUser(t, user, testenv.Secret())
	s.broker.SetPermissions(t, user, ".*", ".*", "^.*moving$")
	_, err := workqueue.Move(t.Context(), on.dial(user), workqueue.Queue{Name: s.queue.Name, Classic: true, Declare: reconnect.Passive}, workqueue.Queue{Name: s.queue.Name, NoDeadLetter: true})
	require.ErrorContains(t, err, "403")
	require.Equal(t, 1, s.broker.Queue(t, s.queue.Name).Ready)
}
