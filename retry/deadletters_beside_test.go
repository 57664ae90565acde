package retry_test

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/retry"
	"github.com/warrenmq/warren/workqueue"
)

// A Redrive to a worker that fails everything at once, through many lost connections of both, sends each back all the same:
// those that are dead again, and come before those that a lost connection had in hand, are not taken for them.
func TestRedriveToAFailingWorkerThroughCuts(t *testing.T) {
	t.Parallel()
	s := newDead(t)
	const n, most = 300, 8
	s.bury(0, n)
	v := newVisits()
	worker := s.dial(s.name + "-worker") // cut as well
	stop := s.startOn(worker, s.retrierOn(worker, retry.Policy{MaxAttempts: 1}).Handle(v.failing(always)), workqueue.WorkerConfig{Concurrency: 10})
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for range most {
			select {
			case <-ended:
				return
			case <-time.After(200 * time.Millisecond):
				s.broker.CutConnections(t, s.name)
			}
		}
	}()
	moved, err := s.letters.Redrive(s.within(2*patience), retry.Selection{PerSecond: 300, Where: func(retry.DeadLetter) bool { return true }})
	close(ended)
	<-done
	require.NoError(t, err)
	require.GreaterOrEqual(t, moved, n)
	testenv.Eventually(t, patience, func() bool { return v.distinct() == n }, "each is handled")
	require.NoError(t, stop()) // or it may have one in hand, come twice over a lost connection, that is then in neither queue
	require.Len(t, s.everywhere(), n)
}

// Two tools at once, with a worker that handles, do each message once.
func TestTwoToolsAtOnce(t *testing.T) {
	t.Parallel()
	s := newDead(t)
	const n = 600
	s.bury(0, n)
	v := newVisits()
	s.start(s.retrier(retry.Policy{}).Handle(v.failing(1)), workqueue.WorkerConfig{Concurrency: 4, Prefetch: 20})
	second, err := retry.NewDeadLetters(s.dial(s.name+"-2"), s.queue.Name)
	require.NoError(t, err)
	var wg sync.WaitGroup
	var moved [2]int
	var errs [2]error
	for i, l := range []*retry.DeadLetters{s.letters, second} {
		wg.Go(func() {
			moved[i], errs[i] = l.Redrive(s.within(patience), retry.Selection{Where: func(l retry.DeadLetter) bool {
				id, _ := strconv.Atoi(l.MessageId)
				return id%3 != 0 // a third is held, and comes back
			}})
		})
	}
	wg.Wait()
	require.NoError(t, errs[0])
	require.NoError(t, errs[1])
	t.Logf("one moved %d, the other %d", moved[0], moved[1])
	testenv.Eventually(t, 2*patience, func() bool {
		if s.remaining(t) > n/3 { // what one had in hand the other did not see
			_, err := s.letters.Redrive(s.within(patience), retry.Selection{Where: func(l retry.DeadLetter) bool {
				id, _ := strconv.Atoi(l.MessageId)
				return id%3 != 0
			}})
			require.NoError(t, err)
		}
		return v.distinct() == n*2/3
	}, "all handled")
	require.Equal(t, n*2/3, v.total(), "none of them twice")
	require.Len(t, s.look(-1), n/3)
}

func (s *dead) remaining(t *testing.T) int {
	n, err := s.letters.Count(s.within(patience))
	require.NoError(t, err)
	return n
}
