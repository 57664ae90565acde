package consume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

func TestJudge(t *testing.T) {
	for _, tc := range []struct {
		name  string
		err   error
		ended bool
		want  fate
	}{
		{"nil", nil, false, acked},
		{"nil after the grace", nil, true, acked},
		{"error", errBad, false, dead},
		{"not now", fmt.Errorf("wrapped: %w", busy{}), false, later},
		{"not now after the grace", busy{}, true, later},
		{"says no", notNow(false), false, dead},
		{"permanent", permanent{errBad}, false, dead},
		{"context's after the grace", context.Canceled, true, backed},
		{"what a client made of it", errBad, true, backed},
		{"permanent after the grace", fmt.Errorf("x: %w", permanent{errBad}), true, dead},
		{"deadline", context.DeadlineExceeded, false, dead},
		{"joined", errors.Join(errBad, busy{}), false, later},
		{"panic with a not now", &panicError{value: busy{}}, false, dead},
	} {
		require.Equal(t, tc.want, judge(tc.err, tc.ended), tc.name)
	}
}

type notNow bool

func (n notNow) Error() string { return "n" }
func (n notNow) NotNow() bool  { return bool(n) }

func TestRetryDelay(t *testing.T) {
	var grown []time.Duration
	for try := 1; try <= 9; try++ {
		d, named := retryDelay(notNow(true), try)
		require.False(t, named)
		grown = append(grown, d/time.Second)
	}
	require.Equal(t, []time.Duration{1, 2, 4, 8, 16, 32, 60, 60, 60}, grown)
	d, named := retryDelay(fmt.Errorf("x: %w", busy{3 * time.Minute}), 5)
	require.True(t, named)
	require.Equal(t, 3*time.Minute, d)
	d, named = retryDelay(busy{-1}, 1<<40)
	require.False(t, named)
	require.Equal(t, time.Minute, d)
}

func TestSplitBatch(t *testing.T) {
	e := each{nil, errBad}
	require.Equal(t, []error{nil, nil}, splitBatch(nil, 2))
	require.Equal(t, []error(e), splitBatch(e, 2))
	require.Equal(t, []error(e), splitBatch(fmt.Errorf("x: %w", e), 2))
	for _, whole := range []error{errBad, errors.Join(errBad, errBad, errBad)} {
		split := splitBatch(whole, 2)
		require.Len(t, split, 2)
		for _, err := range split {
			require.ErrorIs(t, err, whole)
			require.Equal(t, whole.Error(), err.Error())
		}
	}
	for _, err := range splitBatch(e, 3) {
		require.ErrorContains(t, err, "the handler's error has 2 entries for 3 messages")
	}
	require.Equal(t, later, judge(splitBatch(notNow(true), 2)[1], false), "it steers the loop as it is")
}

func TestABatchThatFailsAsAWholeIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	g := &generation{log: testenv.Logger(&log), loop: &Loop{}}
	for i, err := range splitBatch(&panicError{"oh no", []byte("the stack")}, 500) {
		g.logFailed(&item{d: amqp.Delivery{MessageId: fmt.Sprint("m-", i)}, cause: err})
	}
	require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
	for _, part := range []string{"message=m-0", "messages=500", "oh no", "the stack"} {
		require.Contains(t, log.String(), part)
	}
	require.EqualValues(t, 1, g.loop.Stats().Panics)
}

func TestTimedOutHandlerSaysSo(t *testing.T) {
	g := &generation{cfg: &Config{HandlerTimeout: time.Minute}}
	ctx := newCallCtx(t.Context(), time.Now().Add(-1))
	err := g.timedOut(ctx, fmt.Errorf("query: %w", ctx.Err()))
	require.EqualError(t, err, "query: context deadline exceeded (HandlerTimeout of 1m0s has passed)")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, errBad, g.timedOut(ctx, errBad))
	own := fmt.Errorf("own: %w", context.DeadlineExceeded)
	require.Equal(t, own, g.timedOut(newCallCtx(t.Context(), time.Now().Add(time.Hour)), own), "a deadline of its own")
}

func TestGrown(t *testing.T) {
	var steps []int
	for p := 1; p < 100; p = grown(p, 100) {
		steps = append(steps, p)
	}
	require.Equal(t, []int{1, 2, 4, 8, 16, 32, 64}, steps)
	s := newSpell("t", 3)
	require.Equal(t, []bool{false, false, true, false}, []bool{s.ripe(10), s.ripe(10), s.ripe(10), s.ripe(10)})
	full := newSpell("t", 1)
	require.False(t, full.ripe(1))
}

func TestTags(t *testing.T) {
	long := strings.Repeat("ä", 300)
	a, b := newTag(long), newTag(long)
	require.NotEqual(t, a, b)
	require.LessOrEqual(t, len(a), 255)
	require.True(t, strings.HasPrefix(newTag("w/3"), "w/3-"))
}

// A simulated broker and a worker: the time said is never after the real one, nor before what could be known.
func TestArrivals(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		p := 1 + rnd.IntN(6)
		now := time.Now()
		tick := func() { now = now.Add(time.Duration(1+rnd.IntN(1000)) * time.Millisecond) }
		var a arrivals
		a.reset(p, now)
		var window []time.Time // delivered, not taken
		open := 0              // taken, not settled
		for range 200 {
			tick()
			for len(window)+open < p && rnd.IntN(3) > 0 {
				window = append(window, now)
			}
			tick()
			switch {
			case len(window) == 0:
				a.idle(now)
			case rnd.IntN(2) == 0:
				at := a.take()
				require.False(t, at.After(window[0]), "prefetch %d", p)
				window = window[1:]
				open++
			}
			if open > 0 && rnd.IntN(2) == 0 {
				n := 1 + rnd.IntN(open)
				tick()
				a.settle(n, now)
				open -= n
			}
		}
	}
}

// With prefetch 1 a message cannot have come before the one before it was settled.
func TestArrivalsOfPrefetchOne(t *testing.T) {
	var a arrivals
	began := time.Now()
	a.reset(1, began)
	require.Equal(t, began, a.take())
	settled := began.Add(25 * time.Minute)
	a.settle(1, settled)
	require.Equal(t, settled, a.take())
}

// start reserves a start and returns how long to wait for it.
func (l *limiter) start() time.Duration {
	_, wait := l.reserve(time.Now())
	return wait
}

func TestLimiter(t *testing.T) {
	require.Nil(t, newLimiter(0))
	for _, rate := range []float64{0.5, 20, 1000, 50000} {
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter(rate)
			began := time.Now()
			n := max(3, int(rate*2))
			for range n {
				time.Sleep(l.start())
			}
			took := time.Since(began).Seconds()
			require.InDelta(t, float64(n-1)/rate, took, 1/rate+slack.Seconds())
		})
	}
	t.Run("no burst after a rest", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter(10)
			l.start()
			time.Sleep(time.Minute)
			synctest.Wait() // its timer is due at the same moment
			require.Zero(t, l.start())
			start, wait := l.reserve(time.Now())
			require.Equal(t, 100*time.Millisecond, wait)
			l.cancel(start)
			require.Equal(t, 100*time.Millisecond, l.start())
		})
	})
	t.Run("what is given back is taken once, and by nobody else's start", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter(1)
			require.Zero(t, l.start())
			first, _ := l.reserve(time.Now())
			require.Equal(t, 2*time.Second, l.start(), "somebody else's")
			third, _ := l.reserve(time.Now())
			l.cancel(third)
			l.cancel(first)
			require.Equal(t, time.Second, l.start())
			require.Equal(t, 3*time.Second, l.start())
			require.Equal(t, 4*time.Second, l.start())
			late, _ := l.reserve(time.Now())
			l.cancel(late)
			time.Sleep(time.Minute)
			synctest.Wait()
			require.Zero(t, l.start())
			require.Equal(t, time.Second, l.start(), "what was given back is long over")
		})
	})
	t.Run("next to none", func(t *testing.T) {
		l := newLimiter(math.SmallestNonzeroFloat64)
		require.Zero(t, l.start())
		require.Greater(t, l.start(), 24*time.Hour)
	})
}

func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		enter := func() (held bool) {
			held, ok := g.enter(nil, nil)
			require.True(t, ok)
			return held
		}
		require.False(t, enter())
		require.Equal(t, 1, g.refused())
		require.Equal(t, 2, g.refused())
		g.passed()
		require.Equal(t, 1, g.refused(), "in a row")
		g.refused()
		require.False(t, enter())
		require.Equal(t, 3, g.refused())
		require.True(t, enter())

		halt := make(chan struct{})
		close(halt)
		_, ok := g.enter(halt, nil)
		require.False(t, ok)
		_, ok = g.enter(nil, time.After(time.Second))
		require.False(t, ok)

		var inside, most, through atomic.Int64
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				held := enter()
				raise(&most, inside.Add(1))
				time.Sleep(time.Second)
				inside.Add(-1)
				if through.Add(1) == 3 {
					g.passed()
				}
				if held {
					g.leave()
				}
			})
		}
		time.Sleep(time.Second)
		require.Zero(t, inside.Load(), "the token is held")
		g.leave()
		time.Sleep(2500 * time.Millisecond)
		require.EqualValues(t, 1, most.Load())
		time.Sleep(time.Second)
		wg.Wait()
		require.EqualValues(t, 10, through.Load())
		require.EqualValues(t, 7, most.Load(), "all at once when it is wide again")
		require.False(t, enter())
	})
}

func TestPauseSwitch(t *testing.T) {
	p := newPause()
	now, changed := p.state()
	require.Equal(t, pauseState{}, now)
	p.set(false)
	select {
	case <-changed:
		require.Fail(t, "no change")
	default:
	}
	p.set(true)
	<-changed
	now, _ = p.state()
	require.Equal(t, pauseState{on: true, times: 1}, now)
	p.set(false)
	p.set(true)
	now, _ = p.state()
	require.Equal(t, pauseState{on: true, times: 2}, now)
}

func TestCallContext(t *testing.T) {
	type key struct{}
	errCause := errors.New("cause")
	setup := func() (context.Context, context.CancelCauseFunc) {
		return context.WithCancelCause(context.WithValue(context.Background(), key{}, "v"))
	}
	// Each of these must look the same whether or not the standard context was made before.
	for _, made := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			fresh := func(deadline time.Duration) (*callCtx, context.CancelCauseFunc) {
				parent, cancel := setup()
				var at time.Time
				if deadline > 0 {
					at = time.Now().Add(deadline)
				}
				c := newCallCtx(parent, at)
				if made {
					c.Done()
				}
				require.NoError(t, c.Err())
				require.NoError(t, context.Cause(c))
				require.Equal(t, "v", c.Value(key{}))
				got, ok := c.Deadline()
				require.Equal(t, at, got)
				require.Equal(t, deadline > 0, ok)
				return c, cancel
			}
			c, cancel := fresh(time.Minute)
			cancel(errCause)
			require.Equal(t, context.Canceled, c.Err())
			require.Equal(t, errCause, context.Cause(c))
			<-c.Done()

			c, cancel = fresh(time.Minute)
			time.Sleep(time.Minute)
			synctest.Wait() // its timer is due at the same moment
			require.Equal(t, context.DeadlineExceeded, c.Err())
			cancel(errCause)
			require.Equal(t, context.DeadlineExceeded, c.Err(), "it stays the same")
			require.Equal(t, context.DeadlineExceeded, context.Cause(c))
			<-c.Done()

			c, cancel = fresh(0)
			c.end()
			require.Equal(t, context.Canceled, c.Err())
			<-c.Done()
			cancel(nil)

			c, cancel = fresh(time.Minute)
			child, stop := context.WithTimeout(c, time.Hour)
			after := make(chan error, 1)
			context.AfterFunc(c, func() { after <- context.Cause(c) })
			cancel(errCause)
			<-child.Done()
			require.Equal(t, errCause, context.Cause(child))
			require.Equal(t, errCause, <-after)
			stop()

			c, cancel = fresh(time.Minute)
			child, stop = context.WithCancel(c)
			time.Sleep(time.Minute)
			synctest.Wait() // its timer is due at the same moment
			<-child.Done()
			require.Equal(t, context.DeadlineExceeded, context.Cause(child))
			stop()
			cancel(nil)
		})
	}
}

// An unused context costs one allocation.
func TestCallContextIsCheap(t *testing.T) {
	parent, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	deadline := time.Now().Add(time.Hour)
	n := testing.AllocsPerRun(100, func() {
		c := newCallCtx(parent, deadline)
		var ctx context.Context = c
		_ = ctx.Err()
		c.end()
	})
	require.LessOrEqual(t, n, 1.0)
}
