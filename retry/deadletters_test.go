package retry_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/retry"
	"github.com/warrenmq/warren/workqueue"
)

// dead is a setup whose dead-letter queue is looked at.
type dead struct {
	*setup
	letters *retry.DeadLetters
}

func newDead(t *testing.T) *dead {
	t.Helper()
	return newDeadOn(newSetup(t))
}

func newDeadOn(s *setup) *dead {
	s.t.Helper()
	l, err := retry.NewDeadLetters(s.conn, s.queue.Name)
	require.NoError(s.t, err)
	return &dead{s, l}
}

// bury puts messages with the ids from to to-1 straight into the dead-letter queue.
func (s *dead) bury(from, to int) {
	s.t.Helper()
	pub, err := s.conn.NewPublisher(reconnect.PublisherConfig{Shared: true})
	require.NoError(s.t, err)
	var batch []reconnect.Message
	for i := from; i < to; i++ {
		batch = append(batch, reconnect.Message{Key: s.queue.DeadLetterQueue(),
			Publishing: amqp.Publishing{MessageId: strconv.Itoa(i), Body: []byte("job " + strconv.Itoa(i))}})
	}
	require.NoError(s.t, pub.PublishBatch(s.within(patience), batch))
}

// returned waits until nothing is in hand of the dead-letter queue. A call that gives back waits for that, too, but for a second at most,
// and a busy disk takes longer.
func (s *dead) returned() {
	s.t.Helper()
	testenv.Eventually(s.t, patience, func() bool { return s.broker.Queue(s.t, s.queue.DeadLetterQueue()).Unacked == 0 }, "all are given back")
}

// look reads n dead letters, or all (-1), and returns their ids.
func (s *dead) look(n int) (ids []string) {
	s.t.Helper()
	s.returned()
	defer s.returned()
	for letter, err := range s.letters.All(s.within(patience)) {
		require.NoError(s.t, err)
		ids = append(ids, letter.MessageId)
		if len(ids) == n {
			break
		}
	}
	return ids
}

// await waits until n dead letters are ready.
func (s *dead) await(n int) {
	s.t.Helper()
	testenv.Eventually(s.t, patience, func() bool {
		got, err := s.letters.Count(s.within(patience))
		require.NoError(s.t, err)
		return got == n
	}, "%d dead letters", n)
}

// take takes everything that is ready in a queue.
func (s *dead) take(queue string) (ds []amqp.Delivery) {
	s.t.Helper()
	conn := s.broker.Dial(s.t)
	defer conn.Close()
	ch, err := conn.Channel()
	require.NoError(s.t, err)
	for {
		d, ok, err := ch.Get(queue, true)
		require.NoError(s.t, err)
		if !ok {
			return ds
		}
		ds = append(ds, d)
	}
}

func idsOf(ds []amqp.Delivery) (ids []string) {
	for _, d := range ds {
		ids = append(ids, d.MessageId)
	}
	return ids
}

func span(from, to int) (ids []string) {
	for i := from; i < to; i++ {
		ids = append(ids, strconv.Itoa(i))
	}
	return ids
}

// However often, and however far, they are looked at: all stay, in their order.
func TestAllLeavesThemInTheirOrder(t *testing.T) {
	t.Parallel()
	s := newDead(t)
	const n = 150
	s.bury(0, n)
	for _, far := range []int{-1, 3, -1, 70, 1, 40, 149} {
		want := n
		if far > 0 {
			want = far
		}
		require.Equal(t, span(0, want), s.look(far), "looking at %d", far)
	}
	s.bury(n, n+10) // nobody has looked at these
	require.Equal(t, span(0, 5), s.look(5))
	require.Equal(t, span(0, n+10), s.look(-1))
	require.Equal(t, span(0, 155), s.look(155))

	require.Equal(t, span(0, n+10), idsOf(s.take(s.queue.DeadLetterQueue())))
}

// A loop may end in any way: by a panic, by the end of its goroutine, with its context. The letters are back when it has.
func TestAllEndsInAnyWay(t *testing.T) {
	t.Parallel()
	s := newDead(t)
	s.bury(0, 20)
	require.Panics(t, func() {
		for range s.letters.All(s.within(patience)) {
			panic("of the caller")
		}
	})
	s.await(20)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seen := 0
	var last error
	var cancelled time.Time
	for _, err := range s.letters.All(ctx) {
		if last = err; err == nil {
			seen++
			cancelled = time.Now()
			cancel()
		}
	}
	require.ErrorIs(t, last, context.Canceled)
	require.Less(t, seen, 20)
	require.Less(t, time.Since(cancelled), 5*time.Second, "which is when one ends that does not see the end of its context")
	s.await(20)
	require.Equal(t, span(0, 20), s.look(-1))

	done, gone := context.WithCancel(t.Context())
	gone()
	for _, err := range s.letters.All(done) {
		require.ErrorIs(t, err, context.Canceled)
	}
}

func TestRedriveAll(t *testing.T) {
	t.Parallel()
	s := newDead(t)
	s.bury(0, 250)
	n, err := s.letters.Redrive(s.within(patience), retry.Selection{DryRun: true})
	require.NoError(t, err)
	require.Equal(t, 250, n)
	s.await(250)
	n, err = s.letters.Redrive(s.within(patience), retry.Selection{})
	require.NoError(t, err)
	require.Equal(t, 250, n)
	s.await(0)
	back := s.take(s.queue.Name)
	require.Equal(t, span(0, 250), idsOf(back))
	for _, d := range back {
		require.EqualValues(t, amqp.Persistent, d.DeliveryMode)
	}
}

func TestSelection(t *testing.T) {
	t.Parallel()
	even := func(l retry.DeadLetter) bool { n, _ := strconv.Atoi(l.MessageId); return n%2 == 0 }
	for name, tt := range map[string]struct {
		what        retry.Selection
		meant, left []string
	}{
		"ids":             {retry.Selection{IDs: []string{"7", "3", "no such"}}, []string{"3", "7"}, []string{"0", "1", "2", "4", "5", "6", "8", "9"}},
		"no ids":          {retry.Selection{IDs: []string{}}, nil, span(0, 10)},
		"where":           {retry.Selection{Where: even}, []string{"0", "2", "4", "6", "8"}, []string{"1", "3", "5", "7", "9"}},
		"where and limit": {retry.Selection{Where: even, Limit: 2}, []string{"0", "2"}, []string{"1", "3", "4", "5", "6", "7", "8", "9"}},
		"limit":           {retry.Selection{Limit: 4}, span(0, 4), span(4, 10)},
		"unlimited":       {retry.Selection{Limit: -1}, span(0, 10), nil},
		"all three":       {retry.Selection{Where: even, Limit: 1, IDs: []string{"5", "6", "8"}}, []string{"6"}, []string{"0", "1", "2", "3", "4", "5", "7", "8", "9"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newDead(t)
			s.bury(0, 10)
			dry := tt.what
			dry.DryRun = true
			for _, call := range []func(context.Context, retry.Selection) (int, error){s.letters.Redrive, s.letters.Discard} {
				n, err := call(s.within(patience), dry)
				require.NoError(t, err)
				require.Equal(t, len(tt.meant), n)
				s.returned()
			}
			require.Equal(t, span(0, 10), s.look(-1), "a dry run does nothing")
			n, err := s.letters.Redrive(s.within(patience), tt.what)
			require.NoError(t, err)
			require.Equal(t, len(tt.meant), n)
			require.Equal(t, tt.left, s.look(-1))
			require.ElementsMatch(t, tt.meant, idsOf(s.take(s.queue.Name)))
		})
	}
}

func TestDiscard(t *testing.T) {
	t.Parallel()
	s := newDead(t)
	s.bury(0, 10)
	n, err := s.letters.Discard(s.within(patience), retry.Selection{IDs: []string{"4"}})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, []string{"0", "1", "2", "3", "5", "6", "7", "8", "9"}, s.look(-1))
	n, err = s.letters.Discard(s.within(patience), retry.Selection{})
	require.NoError(t, err)
	require.Equal(t, 9, n)
	s.await(0)
	s.returned() // the last acknowledgements are on their way
	require.Zero(t, s.depth(s.queue.DeadLetterQueue()))
	require.Zero(t, s.depth(s.queue.Name))
}

func TestFaultsOfASelection(t *testing.T) {
	t.Parallel()
	s := newDead(t)
	_, err := s.letters.Redrive(t.Context(), retry.Selection{Limit: -2, PerSecond: -1})
	require.ErrorContains(t, err, "Limit: -2")
	require.ErrorContains(t, err, "PerSecond: -1")
	_, err = retry.NewDeadLetters(nil, "")
	require.ErrorContains(t, err, "conn: nil")
	require.ErrorContains(t, err, "queue: empty")
	err = s.letters.Watch(t.Context(), 0, nil)
	require.ErrorContains(t, err, "every: 0s")
	require.ErrorContains(t, err, "fn: nil")
}

func TestRateOfARedrive(t *testing.T) {
	t.Parallel()
	s := newDead(t)
	s.bury(0, 11)
	began := time.Now()
	n, err := s.letters.Redrive(s.within(patience), retry.Selection{PerSecond: 10})
	took := time.Since(began)
	require.NoError(t, err)
	require.Equal(t, 11, n)
	require.GreaterOrEqual(t, took, time.Second, "10 after the first one, at 10 a second")
	require.Less(t, took, 6*time.Second)
}

func TestWatch(t *testing.T) {
	t.Parallel()
	s := newDead(t)
	ctx, cancel := context.WithCancel(t.Context())
	counts, done := make(chan int), make(chan error, 1)
	go func() { done <- s.letters.Watch(ctx, 10*time.Millisecond, func(n int) { counts <- n }) }()
	require.Zero(t, receive(t, counts, "a count"))
	s.bury(0, 3)
	until := func(n int) {
		testenv.Eventually(t, patience, func() bool { return receive(t, counts, "a count") == n }, "counted %d", n)
	}
	until(3)
	s.broker.CutConnections(t, s.name)
	until(3)
	_, err := s.letters.Discard(s.within(patience), retry.Selection{Limit: 1})
	require.NoError(t, err)
	until(2)
	cancel()
	go func() {
		for range counts {
		}
	}()
	require.NoError(t, receive(t, done, "the end of Watch"))
	close(counts)

	none, err := retry.NewDeadLetters(s.conn, "there is no such queue")
	require.NoError(t, err)
	err = none.Watch(s.within(patience), time.Second, func(int) {})
	var missing *amqp.Error
	require.ErrorAs(t, err, &missing)
	require.Equal(t, amqp.NotFound, missing.Code)
	_, err = none.Redrive(s.within(patience), retry.Selection{})
	require.ErrorAs(t, err, &missing)
	require.Equal(t, amqp.NotFound, missing.Code)
}

// A message that is redriven, fails again, and is dead again while the Redrive still runs is not sent back again.
func TestLoopGuard(t *testing.T) {
	t.Parallel()
	for name, wrap := range map[string]func(s *dead, h retry.Handler) retry.Handler{
		"by a Retrier": func(s *dead, h retry.Handler) retry.Handler {
			return s.retrier(retry.Policy{MaxAttempts: 1}).Handle(h)
		},
		"by a delay and a Retrier": func(s *dead, h retry.Handler) retry.Handler {
			return s.retrier(retry.Policy{MaxAttempts: 2, InitialDelay: time.Millisecond}).Handle(h)
		},
		"by the broker": func(_ *dead, h retry.Handler) retry.Handler { return h },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newDead(t)
			v := newVisits()
			s.bury(0, 40)
			s.start(wrap(s, v.failing(always)), workqueue.WorkerConfig{})
			n, err := s.letters.Redrive(s.within(patience), retry.Selection{PerSecond: 40})
			require.NoError(t, err)
			require.Equal(t, 40, n)
			s.await(40)
			runs := v.total()
			n, err = s.letters.Redrive(s.within(patience), retry.Selection{Where: func(l retry.DeadLetter) bool { return l.MessageId == "7" }})
			require.NoError(t, err, "another call is another matter")
			require.Equal(t, 1, n)
			testenv.Eventually(t, patience, func() bool { return v.total() > runs }, "handled again")
			for id, attempts := range attemptsOf(v) {
				require.LessOrEqual(t, len(attempts), 4, id)
			}
			if name == "by the broker" {
				return
			}
			for _, visit := range v.of("3") {
				for header := range visit.Headers {
					require.NotContains(t, header, "redrive")
				}
			}
		})
	}
}
