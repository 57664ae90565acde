package retry_test

import (
	"context"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/retry"
	"github.com/warrenmq/warren/workqueue"
)

// everywhere counts the messages of both queues by id, once all that was in hand is back.
func (s *dead) everywhere() map[string]int {
	s.t.Helper()
	for _, queue := range []string{s.queue.Name, s.queue.DeadLetterQueue()} {
		testenv.Eventually(s.t, patience, func() bool { return s.broker.Queue(s.t, queue).Unacked == 0 }, "nothing in hand of %s", queue)
	}
	found := map[string]int{}
	for _, d := range append(s.take(s.queue.Name), s.take(s.queue.DeadLetterQueue())...) {
		found[d.MessageId]++
	}
	return found
}

// Broken off anywhere, by the loss of a connection, of a channel, or by the end of its context, a Redrive loses nothing, and
// sends twice only what was in hand.
func TestChaosBrokenOffNothingIsLost(t *testing.T) {
	t.Parallel()
	rounds := 2 // of five faults each
	if os.Getenv("WARREN_CHAOS") != "" {
		rounds = 100
	}
	const n, inHand = 240, 100
	s := newDead(t)
	odd := func(l retry.DeadLetter) bool { i, _ := strconv.Atoi(l.MessageId); return i%2 == 1 }
	faults := map[string]func(cancel func()){
		"cut the connections": func(func()) { s.broker.CutConnections(t, s.name) },
		"close the channels":  func(func()) { s.broker.CloseChannels(t, s.name) },
		"cut the reader":      func(func()) { s.broker.CutConnections(t, s.name+"/consuming/apart") },
		"cut the publisher":   func(func()) { s.broker.CutConnections(t, s.name+"/publishing") },
		"end the context":     func(cancel func()) { cancel() },
	}
	for round := range rounds {
		for name, fault := range faults {
			what := retry.Selection{PerSecond: 1500}
			if round%2 == 1 {
				what.Where = odd
			}
			s.bury(0, n)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			var moved int
			go func() {
				var err error
				moved, err = s.letters.Redrive(ctx, what)
				done <- err
			}()
			faulted := make(chan struct{})
			time.AfterFunc(time.Duration(rand.IntN(150))*time.Millisecond, func() { defer close(faulted); fault(cancel) })
			err := receive(t, done, "the end of Redrive after: "+name)
			cancel()
			receive(t, faulted, "the fault, which may come too late, but not in the next round")
			if name != "end the context" {
				require.NoError(t, err, name)
				require.GreaterOrEqual(t, moved, map[bool]int{true: n / 2, false: n}[what.Where != nil], name)
			}
			twice := 0
			found := s.everywhere()
			for i := range n {
				require.NotZero(t, found[strconv.Itoa(i)], "round %d, %s: message %d", round, name, i)
				twice += found[strconv.Itoa(i)] - 1
			}
			require.LessOrEqual(t, twice, 2*inHand, "round %d, %s: sent twice", round, name)
		}
	}
}

// Thousands of dead letters, twenty megabytes, are looked at and sent back with a few megabytes of memory. Nothing runs beside it,
// since the heap is everybody's.
func TestTwentyMegabytesInBoundedMemory(t *testing.T) {
	const n, size, bound = 4_000, 5 << 10, 10 << 20
	s := newDead(t)
	body := []byte(strings.Repeat("x", size))
	pub, err := s.conn.NewPublisher(reconnect.PublisherConfig{Shared: true})
	require.NoError(t, err)
	for from := 0; from < n; from += 1000 {
		var batch []reconnect.Message
		for i := range 1000 {
			batch = append(batch, reconnect.Message{Key: s.queue.DeadLetterQueue(), Publishing: amqp.Publishing{MessageId: strconv.Itoa(from + i), Body: body}})
		}
		require.NoError(t, pub.PublishBatch(s.within(patience), batch))
	}
	base, peak := heap(), uint64(0)
	began, seen := time.Now(), 0
	for letter, err := range s.letters.All(s.within(patience)) {
		require.NoError(t, err)
		require.Equal(t, strconv.Itoa(seen), letter.MessageId)
		if seen++; seen%400 == 200 {
			peak = max(peak, heap())
		}
	}
	require.Equal(t, n, seen)
	looked := time.Since(began)
	s.await(n)
	began = time.Now()
	moved, err := s.letters.Redrive(s.within(patience), retry.Selection{Where: func(l retry.DeadLetter) bool {
		if i, _ := strconv.Atoi(l.MessageId); i%400 == 200 {
			peak = max(peak, heap())
		}
		return true
	}})
	require.NoError(t, err)
	require.Equal(t, n, moved)
	grown := int64(peak) - int64(base)
	t.Logf("looked at %d in %v, redriven in %v, heap grew by %d KiB", n, looked, time.Since(began), grown>>10)
	require.Less(t, grown, int64(bound))
	require.Equal(t, n, s.depth(s.queue.Name))
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Where a message cannot go, it stays, and the error says why.
func TestRedriveThatCannot(t *testing.T) {
	t.Parallel()
	t.Run("no queue", func(t *testing.T) {
		t.Parallel()
		s := newDead(t)
		s.bury(0, 5)
		s.conn.Forget(s.queue.Topology())
		s.broker.DeleteQueue(t, s.queue.Name)
		n, err := s.letters.Redrive(s.within(patience), retry.Selection{})
		require.Zero(t, n)
		var returned *reconnect.ReturnedError
		require.ErrorAs(t, err, &returned)
		require.Equal(t, span(0, 5), s.look(-1))
	})
	t.Run("full", func(t *testing.T) {
		t.Parallel()
		broker := testenv.Shared(t)
		s := newDeadOn(newSetupOn(t, broker, broker.URL(), workqueue.Queue{Classic: true, MaxLength: 3}))
		s.bury(0, 5)
		n, err := s.letters.Redrive(s.within(patience), retry.Selection{PerSecond: 100})
		require.ErrorIs(t, err, reconnect.ErrRefused)
		left := s.look(-1)
		require.Equal(t, span(n, 5), left)
		require.Equal(t, span(0, n), idsOf(s.take(s.queue.Name)))
	})
	t.Run("one that is too large", func(t *testing.T) {
		t.Parallel()
		s := newDead(t)
		s.bury(0, 2)
		s.raw("", s.queue.DeadLetterQueue(), amqp.Publishing{MessageId: "large", Headers: amqp.Table{"text": strings.Repeat("x", 70_000)}})
		s.bury(2, 4)
		n, err := s.letters.Redrive(s.within(patience), retry.Selection{})
		require.ErrorContains(t, err, `message "large" stays`)
		require.Equal(t, 4, n)
		require.Equal(t, []string{"large"}, s.look(-1))
		require.Equal(t, span(0, 4), idsOf(s.take(s.queue.Name)))
	})
}

// duringAlarm redrives while publishing is blocked: nothing is lost, nothing hangs, and looking works.
func (s *dead) duringAlarm(n int) {
	s.t.Helper()
	const limit = 4 * time.Second // enough to connect and to hear of the alarm, also on a machine that stands still for a moment
	ctx, cancel := context.WithTimeout(s.t.Context(), limit)
	defer cancel()
	began := time.Now()
	_, err := s.letters.Redrive(ctx, retry.Selection{})
	took := time.Since(began)
	require.ErrorIs(s.t, err, reconnect.ErrBlocked)
	require.Less(s.t, took, limit+(5+1+5)*time.Second, "took %v; what does not end by itself is left alone after 5 and 1 s", took)
	require.Equal(s.t, span(0, n), s.look(-1))
}

// afterAlarm redrives what is there, of which some may have been sent during the alarm already.
func (s *dead) afterAlarm(n int) {
	s.t.Helper()
	moved, err := s.letters.Redrive(s.within(patience), retry.Selection{})
	require.NoError(s.t, err)
	require.Equal(s.t, n, moved)
	found := s.everywhere()
	require.Len(s.t, found, n)
	for id, times := range found {
		require.LessOrEqual(s.t, times, 2, id)
	}
}

// A network that is frozen holds nobody longer than its context and a little.
func TestFrozenNetwork(t *testing.T) {
	t.Parallel()
	broker := testenv.Shared(t)
	proxy := testenv.Proxy(t, broker.URL())
	s := newDeadOn(newSetupOn(t, broker, proxy.URL(), workqueue.Queue{}))
	s.bury(0, 300)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	began, seen := time.Now(), 0
	var last error
	for _, err := range s.letters.All(ctx) {
		if last = err; err == nil {
			if seen++; seen == 100 {
				proxy.Freeze()
			}
		}
	}
	took := time.Since(began)
	require.ErrorIs(t, last, context.DeadlineExceeded)
	require.Less(t, took, 3*(2+5+1)*time.Second, "took %v", took)
	proxy.Heal()
	testenv.Eventually(t, patience, func() bool {
		n, err := s.letters.Count(s.within(patience))
		return err == nil && n == 300
	}, "all are back")
	require.Len(t, s.look(-1), 300)
	t.Logf("the look at a frozen broker, with 2 s, ended after %v: %v", took.Round(time.Millisecond), last)
}

// What the caller's function does, panic or end its goroutine, harms nothing, and a Conn that is closed ends everything.
func TestRedriveEndsWithItsSurroundings(t *testing.T) {
	t.Parallel()
	s := newDead(t)
	s.bury(0, 30)
	where := func(f func()) retry.Selection {
		return retry.Selection{Where: func(l retry.DeadLetter) bool {
			if l.MessageId == "20" {
				f()
			}
			return true
		}}
	}
	_, err := s.letters.Redrive(s.within(patience), where(func() { panic("of the caller") }))
	require.ErrorContains(t, err, "panic: of the caller")
	s.lost(t, 30) // what was in hand is given back a moment later
	_, err = s.letters.Redrive(s.within(patience), where(runtime.Goexit))
	require.ErrorContains(t, err, "has ended its goroutine")
	s.lost(t, 30)

	closing := s.dial(s.name + "-closing")
	l, err := retry.NewDeadLetters(closing, s.queue.Name)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() {
		for _, err := range l.All(s.within(patience)) {
			if err != nil {
				ended <- err
				return
			}
			_ = closing.Close(context.Background())
		}
	}()
	require.ErrorIs(t, receive(t, ended, "the end of All"), reconnect.ErrClosed)
	_, err = l.Redrive(s.within(patience), retry.Selection{})
	require.ErrorIs(t, err, reconnect.ErrClosed)
	s.lost(t, 30)
}

// lost fails unless n messages are in the two queues.
func (s *dead) lost(t *testing.T, n int) {
	t.Helper()
	testenv.Eventually(t, patience, func() bool {
		return s.depth(s.queue.Name)+s.depth(s.queue.DeadLetterQueue()) == n && s.broker.Queue(t, s.queue.DeadLetterQueue()).Unacked == 0
	}, "%d messages", n)
}

// A look whose connection is cut leaves them in their order. It ends with an error, unless all were shown.
func TestCutWhileLooking(t *testing.T) {
	t.Parallel()
	const n = 500
	for _, at := range []int{100, n} {
		t.Run(strconv.Itoa(at), func(t *testing.T) {
			t.Parallel()
			s := newDead(t)
			s.bury(0, n)
			seen := 0
			var last error
			for _, err := range s.letters.All(s.within(patience)) {
				if last = err; err != nil {
					continue
				}
				if seen++; seen == at {
					s.broker.CutConnections(t, s.name+"/consuming/apart")
					testenv.Eventually(t, patience, func() bool { return s.broker.Queue(t, s.queue.DeadLetterQueue()).Ready == n }, "all are back")
				}
			}
			if at < n {
				require.ErrorContains(t, last, "the connection was lost after "+strconv.Itoa(seen)+" of them")
				require.Less(t, seen, n)
			} else {
				require.NoError(t, last)
			}
			require.Equal(t, span(0, n), s.look(-1))
		})
	}
}

// A redrive that takes longer than the broker lets anybody hold a message begins again from the head, and does each once.
func TestSlowRedriveKeepsWithinTheConsumerTimeout(t *testing.T) {
	t.Parallel()
	s := newDead(t)
	const n = 40
	s.bury(0, n)
	l, err := retry.NewDeadLetters(s.dialWith(reconnect.Config{Name: s.name + "-slow", ConsumerTimeout: 200 * time.Millisecond}), s.queue.Name)
	require.NoError(t, err)
	asked := 0
	moved, err := l.Redrive(s.within(patience), retry.Selection{PerSecond: 40, Where: func(l retry.DeadLetter) bool {
		asked++
		i, _ := strconv.Atoi(l.MessageId)
		return i%2 == 1
	}})
	require.NoError(t, err)
	require.Equal(t, n/2, moved)
	require.Greater(t, asked, n, "it has begun again")
	back := idsOf(s.take(s.queue.Name))
	require.Len(t, back, n/2)
	left := s.look(-1)
	require.Len(t, left, n/2)
	require.ElementsMatch(t, span(0, n), append(back, left...))
}
