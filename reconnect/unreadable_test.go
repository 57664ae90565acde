package reconnect

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

var errBadFrame = errors.New("invalid field or value inside of a frame")

// suspicion is an unreadable with questions to it.
type suspicion struct {
	t *testing.T
	*unreadable
}

func newSuspicion(t *testing.T) suspicion {
	return suspicion{t, newUnreadable(testenv.Logger(io.Discard))}
}

func (s suspicion) apart(want bool, who string) {
	s.t.Helper()
	until, why, _ := s.state(who)
	require.Equal(s.t, want, until.After(time.Now()), who)
	require.Equal(s.t, want, why != "", who)
}

func TestSuspicion(t *testing.T) {
	const a, b = `queue "a"`, `queue "b"`
	for _, c := range []struct {
		name string
		run  func(t *testing.T, s suspicion)
	}{
		{"one loss is none", func(_ *testing.T, s suspicion) {
			s.lostLink(errBadFrame)
			s.apart(false, a)
		}},
		{"two losses a minute apart are none", func(_ *testing.T, s suspicion) {
			s.lostLink(errBadFrame)
			time.Sleep(suspectWithin)
			s.lostLink(errBadFrame)
			s.apart(false, a)
		}},
		{"two losses within a minute are one, of all, until it was quiet for a while", func(_ *testing.T, s suspicion) {
			s.lostLink(errBadFrame)
			time.Sleep(suspectWithin - 1)
			s.lostLink(errBadFrame)
			s.apart(true, a)
			time.Sleep(quietFor - 1)
			s.apart(true, b)
			time.Sleep(time.Nanosecond)
			s.apart(false, b)
		}},
		{"the guilty one stays apart while it is guilty, the others go soon", func(t *testing.T, s suspicion) {
			s.lostLink(errBadFrame)
			s.lostLink(errBadFrame)
			s.lostOwn(a, errBadFrame)
			s.apart(true, a)
			s.apart(true, b)
			_, why, _ := s.state(a)
			require.Contains(t, why, a)
			time.Sleep(showWithin)
			s.apart(true, a)
			s.apart(false, b)
			time.Sleep(quietFor / 2)
			s.lostOwn(a, errBadFrame)
			time.Sleep(quietFor - 1)
			s.apart(true, a)
			time.Sleep(time.Nanosecond)
			s.apart(false, a)
		}},
		{"a second guilty one shows itself while all are apart", func(_ *testing.T, s suspicion) {
			s.lostLink(errBadFrame)
			s.lostLink(errBadFrame)
			s.lostOwn(a, errBadFrame)
			time.Sleep(showWithin / 2)
			s.lostOwn(b, errBadFrame)
			time.Sleep(showWithin)
			s.apart(true, a)
			s.apart(true, b)
			s.apart(false, `queue "c"`)
		}},
		{"a second guilty one costs the link once more, and the known one does not end the search for it", func(_ *testing.T, s suspicion) {
			s.lostLink(errBadFrame)
			s.lostLink(errBadFrame)
			s.lostOwn(a, errBadFrame)
			time.Sleep(2 * showWithin)
			s.apart(false, b)
			s.lostLink(errBadFrame)
			s.apart(true, b)
			s.lostOwn(a, errBadFrame)
			time.Sleep(2 * showWithin)
			s.apart(true, b)
			s.lostOwn(b, errBadFrame)
			time.Sleep(2 * showWithin)
			s.apart(true, b)
			s.apart(false, `queue "c"`)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { c.run(t, newSuspicion(t)) })
		})
	}
}

func TestAwaitTheEndOfASuspicion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSuspicion(t)
		s.lostLink(errBadFrame)
		s.lostLink(errBadFrame)
		over, again, began := make(chan time.Duration, 2), make(chan struct{}, 10), time.Now()
		for _, who := range []string{"guilty", "other"} {
			go func() {
				require.True(t, s.awaitOver(t.Context(), func() string { return who }, func() { again <- struct{}{} }))
				over <- time.Since(began)
			}()
		}
		synctest.Wait()
		time.Sleep(time.Second)
		s.lostOwn("guilty", errBadFrame)
		require.Equal(t, time.Second+showWithin, <-over)
		require.Equal(t, time.Second+quietFor, <-over)
		require.Len(t, again, 2, "each was told once that there is news")

		s.lostOwn("guilty", errBadFrame)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.False(t, s.awaitOver(ctx, func() string { return "guilty" }, func() {}))
	})
}

func TestNoLinkIsAddedWhileClosing(t *testing.T) {
	u := newUnreadable(testenv.Logger(io.Discard))
	first, second := &link{}, &link{}
	require.True(t, u.add(first))
	require.True(t, u.add(second))
	u.remove(first)
	require.Equal(t, []*link{second}, u.shut())
	require.False(t, u.add(first))
}

// Two wait for the last to leave: the Conn's Close and the function's own.
func TestGateToldToAllWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		require.True(t, g.enter())
		left := make(chan int64, 2)
		for range cap(left) {
			go func() { left <- g.shut(t.Context()) }()
		}
		synctest.Wait()
		g.leave()
		require.Zero(t, <-left)
		require.Zero(t, <-left)
	})
}
