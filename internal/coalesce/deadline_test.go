package coalesce_test

import (
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/coalesce"
)

// The limits are first checked in virtual time, over net.Pipe, where they can be measured exactly.

const beat = 10 * time.Second

// inBubble runs fn in virtual time with a Conn over a pipe, whose other end is far.
func inBubble(t *testing.T, fn func(t *testing.T, c *coalesce.Conn, far net.Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		c := coalesce.New(near)
		fn(t, c, far)
		c.Kill()
		require.NoError(t, c.Close())
		far.Close()
		synctest.Wait()
	})
}

// readUntilError reads until it fails and returns the error and the time of it.
func readUntilError(r io.Reader) (time.Time, error) {
	buf := make([]byte, 64)
	for {
		if _, err := r.Read(buf); err != nil {
			return time.Now(), err
		}
	}
}

func TestSilentPeerIsNoticed(t *testing.T) {
	t.Run("frozen right after the handshake, with Read in progress", func(t *testing.T) {
		inBubble(t, func(t *testing.T, c *coalesce.Conn, _ net.Conn) {
			start := time.Now()
			require.NoError(t, c.SetDeadline(time.Time{})) // as the driver does at the end of the handshake
			time.AfterFunc(time.Millisecond, func() { c.SetHeartbeat(beat) })
			at, err := readUntilError(c)
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			requireBetween(t, at.Sub(start), 2*beat, 3*beat)
			require.ErrorIs(t, c.WaitRoom(t.Context()), os.ErrDeadlineExceeded, "the connection is over")
		})
	})
	t.Run("frozen after some traffic", func(t *testing.T) {
		inBubble(t, func(t *testing.T, c *coalesce.Conn, far net.Conn) {
			c.SetHeartbeat(beat)
			last := make(chan time.Time, 1)
			go func() {
				for i := range 1000 {
					time.Sleep(time.Duration(i%100) * beat / 100) // less than a heartbeat each
					_, _ = far.Write([]byte("x"))
				}
				last <- time.Now()
			}()
			at, err := readUntilError(c)
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			requireBetween(t, at.Sub(<-last), 2*beat, 3*beat)
		})
	})
	t.Run("the driver's own deadlines change nothing", func(t *testing.T) {
		inBubble(t, func(t *testing.T, c *coalesce.Conn, _ net.Conn) {
			start := time.Now()
			c.SetHeartbeat(beat)
			require.NoError(t, c.SetReadDeadline(time.Now().Add(100*beat)))
			at, err := readUntilError(c)
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			requireBetween(t, at.Sub(start), 2*beat, 3*beat)
		})
	})
	t.Run("blocked or not", func(t *testing.T) {
		inBubble(t, func(t *testing.T, c *coalesce.Conn, _ net.Conn) {
			start := time.Now()
			c.SetHeartbeat(beat)
			c.SetBlocked(true)
			at, err := readUntilError(c)
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			requireBetween(t, at.Sub(start), 2*beat, 3*beat)
		})
	})
}

func TestLivingPeerIsNotCut(t *testing.T) {
	for name, pause := range map[string]time.Duration{
		"a frame every half heartbeat": beat / 2,
		"a frame every heartbeat":      beat,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *coalesce.Conn, far net.Conn) {
				c.SetHeartbeat(beat)
				go func() {
					for range 1000 {
						time.Sleep(pause)
						_, _ = far.Write([]byte("heartbeat"))
					}
					far.Close()
				}()
				_, err := readUntilError(c)
				require.ErrorIs(t, err, io.EOF)
			})
		})
	}
	t.Run("no heartbeat, no limit", func(t *testing.T) {
		inBubble(t, func(t *testing.T, c *coalesce.Conn, far net.Conn) {
			c.SetHeartbeat(0)
			_, err := c.Write([]byte("x"))
			require.NoError(t, err)
			time.AfterFunc(time.Hour, func() {
				_, _ = io.ReadFull(far, make([]byte, 1))
				far.Close()
			})
			_, err = readUntilError(c)
			require.ErrorIs(t, err, io.EOF)
		})
	})
}

func TestReadAfterALongPause(t *testing.T) {
	inBubble(t, func(t *testing.T, c *coalesce.Conn, far net.Conn) {
		c.SetHeartbeat(beat)
		go func() { _, _ = far.Write([]byte("x")) }()
		time.Sleep(10 * beat) // the reader was busy; what came meanwhile is not lost
		n, err := c.Read(make([]byte, 1))
		require.NoError(t, err)
		require.Equal(t, 1, n)
	})
}

// writeError waits for the flusher to fail and returns when and why.
func writeError(t *testing.T, c *coalesce.Conn) (time.Time, error) {
	t.Helper()
	for c.Err() == nil {
		time.Sleep(beat / 100)
	}
	return time.Now(), c.Err()
}

func TestPeerThatTakesNothingIsNoticed(t *testing.T) {
	t.Run("from the start", func(t *testing.T) {
		inBubble(t, func(t *testing.T, c *coalesce.Conn, _ net.Conn) {
			start := time.Now()
			c.SetHeartbeat(beat)
			_, _ = c.Write([]byte("x"))
			at, err := writeError(t, c)
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			requireBetween(t, at.Sub(start), 2*beat, 3*beat)
		})
	})
	t.Run("with a write in progress when the heartbeat becomes known", func(t *testing.T) {
		inBubble(t, func(t *testing.T, c *coalesce.Conn, _ net.Conn) {
			_, _ = c.Write([]byte("x"))
			time.Sleep(beat)
			start := time.Now()
			c.SetHeartbeat(beat)
			at, err := writeError(t, c)
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			requireBetween(t, at.Sub(start), 2*beat, 3*beat)
		})
	})
	t.Run("stopped in the middle", func(t *testing.T) {
		inBubble(t, func(t *testing.T, c *coalesce.Conn, far net.Conn) {
			c.SetHeartbeat(beat)
			_, _ = c.Write(make([]byte, 1000))
			for range 5 { // slow, but alive
				time.Sleep(beat * 2 / 3)
				_, err := far.Read(make([]byte, 1))
				require.NoError(t, err)
			}
			start := time.Now()
			at, err := writeError(t, c)
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			requireBetween(t, at.Sub(start), 2*beat-beat/100, 3*beat)
		})
	})
}

func TestSlowPeerIsNotCut(t *testing.T) {
	inBubble(t, func(t *testing.T, c *coalesce.Conn, far net.Conn) {
		c.SetHeartbeat(beat)
		f := frame(7, 0, 500)
		_, _ = c.Write(f)
		got := make([]byte, 0, len(f))
		for len(got) < len(f) { // about a minute for a chunk that has 20 s
			time.Sleep(beat)
			n, err := far.Read(got[len(got):min(len(got)+50, cap(got))])
			require.NoError(t, err)
			got = got[:len(got)+n]
		}
		require.Equal(t, f, got)
		require.NoError(t, c.Err())
	})
}

func TestBlocked(t *testing.T) {
	t.Run("toggled after a long pause it leaves a write its time", func(t *testing.T) {
		inBubble(t, func(t *testing.T, c *coalesce.Conn, far net.Conn) {
			c.SetHeartbeat(beat)
			time.Sleep(beat * 199 / 100)
			c.SetBlocked(true)
			time.Sleep(beat * 199 / 100)
			c.SetBlocked(false)
			time.Sleep(beat * 199 / 100)
			require.NoError(t, c.SetDeadline(time.Time{}))
			_, _ = c.Write([]byte("x"))
			time.Sleep(beat * 199 / 100)
			_, err := far.Read(make([]byte, 1))
			require.NoError(t, err)
			require.NoError(t, c.Err())

			time.Sleep(3 * beat)
			require.NoError(t, c.SetDeadline(time.Time{}))
			_, _ = c.Write([]byte("x"))
			start := time.Now()
			at, err := writeError(t, c)
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			requireBetween(t, at.Sub(start), 2*beat, 3*beat)
		})
	})
	t.Run("suspends the limit of a write in progress, unblocking restores it", func(t *testing.T) {
		inBubble(t, func(t *testing.T, c *coalesce.Conn, _ net.Conn) {
			c.SetHeartbeat(beat)
			_, _ = c.Write([]byte("x"))
			time.Sleep(beat)
			c.SetBlocked(true)
			c.SetBlocked(true)
			time.Sleep(100 * beat)
			require.NoError(t, c.Err())
			start := time.Now()
			c.SetBlocked(false)
			at, err := writeError(t, c)
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			requireBetween(t, at.Sub(start), 2*beat, 3*beat)
		})
	})
	t.Run("a write begun meanwhile arrives", func(t *testing.T) {
		inBubble(t, func(t *testing.T, c *coalesce.Conn, far net.Conn) {
			c.SetHeartbeat(beat)
			c.SetBlocked(true)
			_, _ = c.Write([]byte("hello"))
			time.Sleep(100 * beat)
			c.SetBlocked(false)
			got := make([]byte, 5)
			_, err := io.ReadFull(far, got)
			require.NoError(t, err)
			require.Equal(t, "hello", string(got))
		})
	})
	t.Run("SetDeadline and Close hold all the same", func(t *testing.T) {
		inBubble(t, func(t *testing.T, c *coalesce.Conn, _ net.Conn) {
			start := time.Now()
			c.SetHeartbeat(beat)
			c.SetBlocked(true)
			_, _ = c.Write([]byte("x"))
			require.NoError(t, c.SetDeadline(start.Add(beat/2)))
			at, err := writeError(t, c)
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			requireBetween(t, at.Sub(start), beat/2, beat/2+beat/50)
		})
		inBubble(t, func(t *testing.T, c *coalesce.Conn, _ net.Conn) {
			start := time.Now()
			c.SetHeartbeat(beat)
			c.SetBlocked(true)
			_, _ = c.Write([]byte("x"))
			require.NoError(t, c.Close())
			require.LessOrEqual(t, time.Since(start), time.Second)
		})
	})
}

func TestSetDeadline(t *testing.T) {
	t.Run("bounds the handshake", func(t *testing.T) {
		inBubble(t, func(t *testing.T, c *coalesce.Conn, _ net.Conn) {
			start := time.Now()
			require.NoError(t, c.SetDeadline(start.Add(beat)))
			// The driver's heartbeat goroutine does this before the handshake is over.
			require.NoError(t, c.SetReadDeadline(start.Add(100*beat)))
			at, err := readUntilError(c)
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			require.Equal(t, beat, at.Sub(start))
		})
	})
	t.Run("bounds a read and a write in progress after it", func(t *testing.T) {
		inBubble(t, func(t *testing.T, c *coalesce.Conn, _ net.Conn) {
			c.SetHeartbeat(beat)
			_, _ = c.Write([]byte("x"))
			type result struct {
				at  time.Time
				err error
			}
			read := make(chan result, 1)
			go func() {
				at, err := readUntilError(c)
				read <- result{at, err}
			}()
			time.Sleep(beat / 2)
			limit := time.Now().Add(beat / 2)
			require.NoError(t, c.SetDeadline(limit))
			require.NoError(t, c.SetReadDeadline(limit.Add(beat))) // the driver's heartbeat goroutine again
			at, err := writeError(t, c)
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			requireBetween(t, at.Sub(limit), 0, beat/50)
			r := <-read
			require.Error(t, r.err)
			require.Equal(t, limit, r.at)
		})
	})
	t.Run("does not weaken the limits", func(t *testing.T) {
		inBubble(t, func(t *testing.T, c *coalesce.Conn, _ net.Conn) {
			start := time.Now()
			c.SetHeartbeat(beat)
			require.NoError(t, c.SetDeadline(start.Add(100*beat)))
			at, err := readUntilError(c)
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			requireBetween(t, at.Sub(start), 2*beat, 3*beat)
		})
	})
	t.Run("zero takes it away", func(t *testing.T) {
		inBubble(t, func(t *testing.T, c *coalesce.Conn, far net.Conn) {
			require.NoError(t, c.SetDeadline(time.Now().Add(beat)))
			require.NoError(t, c.SetWriteDeadline(time.Now().Add(beat)))
			require.NoError(t, c.SetDeadline(time.Time{}))
			_, _ = c.Write([]byte("x"))
			time.Sleep(10 * beat)
			_, err := io.ReadFull(far, make([]byte, 1))
			require.NoError(t, err)
		})
	})
	t.Run("SetReadDeadline holds before the heartbeat is known", func(t *testing.T) {
		inBubble(t, func(t *testing.T, c *coalesce.Conn, _ net.Conn) {
			start := time.Now()
			require.NoError(t, c.SetReadDeadline(start.Add(beat)))
			at, err := readUntilError(c)
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			require.Equal(t, beat, at.Sub(start))
			require.NoError(t, c.Err(), "such a timeout does not end the connection")
		})
	})
	t.Run("SetWriteDeadline bounds the flusher", func(t *testing.T) {
		inBubble(t, func(t *testing.T, c *coalesce.Conn, _ net.Conn) {
			start := time.Now()
			c.SetHeartbeat(beat)
			_, _ = c.Write([]byte("x"))
			require.NoError(t, c.SetWriteDeadline(start.Add(beat/4)))
			at, err := writeError(t, c)
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			requireBetween(t, at.Sub(start), beat/4, beat/4+beat/50)
		})
	})
}

func TestReadDeadlineIsMovedRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		counted := &countingDeadlines{Conn: near}
		c := coalesce.New(counted)
		c.SetHeartbeat(beat)
		go func() {
			for range 10_000 {
				_, _ = far.Write([]byte("x"))
				time.Sleep(time.Millisecond)
			}
			far.Close()
		}()
		buf := make([]byte, 1)
		for {
			if _, err := c.Read(buf); err != nil {
				break
			}
			_, _ = c.Write(nil)
		}
		require.LessOrEqual(t, counted.reads, 6, "ten seconds of traffic")
		require.NoError(t, c.Close())
	})
}

type countingDeadlines struct {
	net.Conn
	reads int
}

func (c *countingDeadlines) SetReadDeadline(t time.Time) error {
	c.reads++
	return c.Conn.SetReadDeadline(t)
}

func requireBetween(t *testing.T, d, least, most time.Duration) {
	t.Helper()
	require.GreaterOrEqual(t, d, least)
	require.LessOrEqual(t, d, most)
}
