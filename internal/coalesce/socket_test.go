package coalesce_test

import (
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/coalesce"
)

// The same limits on real sockets, with a heartbeat that is not a whole number of seconds.

const shortBeat = 200 * time.Millisecond

// slack is what a loaded machine may add.
const slack = 2 * time.Second

// fill writes so much that neither the buffers of the kernel nor a peer that does not read can take it.
func fill(t *testing.T, c *coalesce.Conn) {
	t.Helper()
	_, err := c.Write(make([]byte, 32<<20))
	require.NoError(t, err)
}

func TestFrozenSocket(t *testing.T) {
	eachTransport(t, func(t *testing.T, near, _ net.Conn) {
		c := newConn(t, near)
		c.SetHeartbeat(shortBeat)
		took := within(t, 3*shortBeat+slack, "Read", func() {
			_, err := c.Read(make([]byte, 1))
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		})
		require.GreaterOrEqual(t, took, 2*shortBeat-shortBeat/10)
	})
}

func TestSocketThatTakesNothing(t *testing.T) {
	eachTransport(t, func(t *testing.T, near, _ net.Conn) {
		c := newConn(t, near)
		c.SetHeartbeat(shortBeat)
		fill(t, c)
		within(t, 3*shortBeat+slack, "WaitRoom", func() {
			require.ErrorIs(t, c.WaitRoom(t.Context()), os.ErrDeadlineExceeded)
		})
	})
}

func TestBlockedSocket(t *testing.T) {
	eachTransport(t, func(t *testing.T, near, far net.Conn) {
		const beat = time.Second // so that the peer has two seconds to take something each time, once it is not blocked
		c := newConn(t, near)
		c.SetHeartbeat(beat)
		fill(t, c)
		c.SetBlocked(true)
		timer := time.NewTimer(3 * beat)
		defer timer.Stop()
		<-timer.C
		require.NoError(t, c.Err())
		c.SetBlocked(false)
		drain(t, far)
		within(t, patience, "WaitRoom", func() { require.NoError(t, c.WaitRoom(t.Context())) })
	})
}

func TestKillIsImmediate(t *testing.T) {
	atOnce(t, func(t *testing.T, near, _ net.Conn) time.Duration {
		c := newConn(t, near)
		fill(t, c) // so that the flusher has a write in progress
		read := make(chan error, 1)
		go func() {
			_, err := c.Read(make([]byte, 1))
			read <- err
		}()
		took := within(t, patience, "Kill, Read and Close", func() {
			c.Kill()
			c.Kill()
			require.Error(t, <-read)
			require.NoError(t, c.Close())
		})
		require.ErrorIs(t, c.WaitRoom(t.Context()), net.ErrClosed)
		require.ErrorIs(t, c.Err(), net.ErrClosed)
		return took
	})
}

func TestCloseIsBounded(t *testing.T) {
	eachTransport(t, func(t *testing.T, near, _ net.Conn) {
		c := newConn(t, near)
		fill(t, c)
		took := within(t, patience, "Close", func() {
			done := make(chan error, 1)
			go func() { done <- c.Close() }() // concurrently
			require.NoError(t, c.Close())
			require.NoError(t, <-done)
		})
		require.Less(t, took, time.Second+slack)
		require.NoError(t, c.Close())
	})
}

func TestCloseOfAFullTLSConnIsBoundedWithoutTimers(t *testing.T) {
	// The farewell of TLS has a limit of 5 s of its own; here it meets a socket that is full but for nothing gathered.
	near, _ := tlsPair(t)
	c := newConn(t, near)
	raw := near.NetConn().(*net.TCPConn)
	require.NoError(t, raw.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
	_, err := raw.Write(make([]byte, 32<<20)) // what the peer makes of it does not matter: it does not read
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, raw.SetWriteDeadline(time.Time{}))
	took := within(t, patience, "Close", func() { require.NoError(t, c.Close()) })
	require.Less(t, took, time.Second+slack)
}

func TestCloseOfAnIdleConnIsImmediate(t *testing.T) {
	atOnce(t, func(t *testing.T, near, far net.Conn) time.Duration {
		drain(t, far)
		c := newConn(t, near)
		c.SetHeartbeat(shortBeat)
		return within(t, patience, "Close", func() { require.NoError(t, c.Close()) })
	})
}

func TestCloseFlushes(t *testing.T) {
	eachTransport(t, func(t *testing.T, near, far net.Conn) {
		c := newConn(t, near)
		const frames = 2000
		for i := range uint32(frames) {
			_, err := c.Write(frame(0, i, 500))
			require.NoError(t, err)
		}
		closed := make(chan error, 1)
		go func() { closed <- c.Close() }()
		within(t, patience, "reading and Close", func() {
			got, err := readFrames(far)
			require.NoError(t, err)
			require.Equal(t, frames, got)
			require.NoError(t, <-closed)
		})
	})
}
