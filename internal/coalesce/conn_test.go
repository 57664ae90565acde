package coalesce_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/coalesce"
)

// transports are the kinds of socket every behaviour must hold on.
var transports = []struct {
	name string
	pair func(testing.TB) (near, far net.Conn)
}{
	{"tcp", func(tb testing.TB) (net.Conn, net.Conn) { a, b := tcpPair(tb); return a, b }},
	{"tls", func(tb testing.TB) (net.Conn, net.Conn) { a, b := tlsPair(tb); return a, b }},
	{"pipe", func(testing.TB) (net.Conn, net.Conn) { return net.Pipe() }},
}

func eachTransport(t *testing.T, fn func(t *testing.T, near, far net.Conn)) {
	t.Helper()
	for _, tr := range transports {
		t.Run(tr.name, func(t *testing.T) {
			t.Parallel()
			near, far := tr.pair(t)
			fn(t, near, far)
		})
	}
}

// atOnce is eachTransport for what is immediate, where the fault would be a wait of a second. fn returns how long it took; it
// is tried again, on another socket, when that is long: the machine may have done something else.
func atOnce(t *testing.T, fn func(t *testing.T, near, far net.Conn) time.Duration) {
	t.Helper()
	for _, tr := range transports {
		t.Run(tr.name, func(t *testing.T) {
			t.Parallel()
			var all []time.Duration
			for range 3 {
				near, far := tr.pair(t)
				took := fn(t, near, far)
				if took < 900*time.Millisecond {
					return
				}
				all = append(all, took)
			}
			require.Fail(t, "not at once", "%v", all)
		})
	}
}

func TestWritersKeepOrderAndContent(t *testing.T) {
	const writers, frames = 8, 300
	eachTransport(t, func(t *testing.T, near, far net.Conn) {
		c := newConn(t, near)
		c.SetHeartbeat(time.Second)
		var (
			driver sync.Mutex // the driver serialises writes in the same way
			wg     sync.WaitGroup
		)
		for w := range uint32(writers) {
			wg.Go(func() {
				for i := range uint32(frames) {
					size := int(i*i*31+w) % 3000
					if i%100 == 99 {
						size = 300_000
					}
					f := frame(w, i, size)
					if err := c.WaitRoom(t.Context()); err != nil {
						t.Error(err)
						return
					}
					driver.Lock()
					n, err := c.Write(f)
					driver.Unlock()
					if err != nil || n != len(f) {
						t.Error(n, err)
					}
					clear(f) // Write must have copied
				}
			})
		}
		go func() {
			wg.Wait()
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for c.Sent() < c.Written() && c.Err() == nil { // Close has only a second for it: see TestCloseFlushes
				<-tick.C
			}
			_ = c.Close()
		}()
		var (
			got int
			err error
		)
		within(t, patience, "reading all frames", func() { got, err = readFrames(far) })
		require.NoError(t, err)
		require.Equal(t, writers*frames, got)
		wg.Wait()
	})
}

func TestReadPassesBytesOn(t *testing.T) {
	eachTransport(t, func(t *testing.T, near, far net.Conn) {
		c := newConn(t, near)
		c.SetHeartbeat(time.Second)
		go func() {
			for i := range uint32(50) {
				_, _ = far.Write(frame(1, i, int(i)*400))
			}
			far.Close()
		}()
		var (
			got int
			err error
		)
		within(t, patience, "reading all frames", func() { got, err = readFrames(c) })
		require.NoError(t, err)
		require.Equal(t, 50, got)
		n, err := c.Read(make([]byte, 10))
		require.Zero(t, n)
		require.ErrorIs(t, err, io.EOF)
	})
}

func TestWritesAreGathered(t *testing.T) {
	near, far := net.Pipe() // a write to a pipe lasts until the peer has read it
	counted := &counting{Conn: near}
	c := newConn(t, counted)
	const n = 1000
	for range n {
		_, err := c.Write(make([]byte, 10))
		require.NoError(t, err)
	}
	within(t, patience, "reading", func() { _, _ = io.ReadFull(far, make([]byte, 10*n)) })
	require.LessOrEqual(t, counted.writes.Load(), int64(2))
}

func TestLargeBuffersLeaveInChunks(t *testing.T) {
	near, far := tcpPair(t)
	largest := 0
	counted := &counting{Conn: near, sizes: func(n int) { largest = max(largest, n) }}
	c := newConn(t, counted)
	const size = 3 << 20
	_, err := c.Write(make([]byte, size))
	require.NoError(t, err)
	within(t, patience, "reading", func() { _, _ = io.ReadFull(far, make([]byte, size)) })
	require.NoError(t, c.Close())
	require.Equal(t, 64<<10, largest)
	require.Equal(t, int64(size/(64<<10)), counted.writes.Load())
}

func TestWaitRoom(t *testing.T) {
	const limit = 256 << 10
	setup := func(t *testing.T) (*coalesce.Conn, net.Conn) {
		near, far := net.Pipe()
		return newConn(t, near), far
	}
	fill := func(t *testing.T, c *coalesce.Conn) {
		_, err := c.Write(make([]byte, limit+1))
		require.NoError(t, err)
	}

	t.Run("up to the limit there is room", func(t *testing.T) {
		c, _ := setup(t)
		_, err := c.Write(make([]byte, limit))
		require.NoError(t, err)
		require.NoError(t, c.WaitRoom(t.Context()))
		require.True(t, c.HasRoom())
	})
	t.Run("above it ctx ends the wait", func(t *testing.T) {
		c, _ := setup(t)
		fill(t, c)
		require.False(t, c.HasRoom())
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		within(t, patience, "WaitRoom", func() { require.ErrorIs(t, c.WaitRoom(ctx), context.DeadlineExceeded) })
	})
	t.Run("all who wait go on when the peer reads", func(t *testing.T) {
		c, far := setup(t)
		fill(t, c)
		failed := make(chan error, 10)
		for range cap(failed) {
			go func() { failed <- c.WaitRoom(t.Context()) }()
		}
		select {
		case err := <-failed:
			require.FailNow(t, "did not wait", "%v", err)
		case <-time.After(20 * time.Millisecond):
		}
		within(t, patience, "reading", func() { _, _ = io.ReadFull(far, make([]byte, limit+1)) })
		within(t, patience, "WaitRoom", func() {
			for range cap(failed) {
				require.NoError(t, <-failed)
			}
		})
	})
	for name, end := range map[string]struct {
		do   func(c *coalesce.Conn, far net.Conn)
		want error
	}{
		"Kill":               {func(c *coalesce.Conn, _ net.Conn) { c.Kill() }, net.ErrClosed},
		"Close":              {func(c *coalesce.Conn, _ net.Conn) { _ = c.Close() }, net.ErrClosed},
		"a failure of write": {func(_ *coalesce.Conn, far net.Conn) { far.Close() }, io.ErrClosedPipe},
	} {
		t.Run(name+" ends the wait", func(t *testing.T) {
			c, far := setup(t)
			fill(t, c)
			failed := make(chan error, 1)
			go func() { failed <- c.WaitRoom(context.Background()) }()
			end.do(c, far)
			within(t, patience, "WaitRoom", func() { require.ErrorIs(t, <-failed, end.want) })
			require.ErrorIs(t, c.WaitRoom(t.Context()), end.want)
			require.ErrorIs(t, c.Err(), end.want)
			require.False(t, c.HasRoom())
			n, err := c.Write([]byte("x"))
			require.NoError(t, err, "Read and WaitRoom say it")
			require.Equal(t, 1, n)
			require.NoError(t, c.SetDeadline(time.Now().Add(time.Second)))
		})
	}
}

func TestWriteErrorIsFinal(t *testing.T) {
	broken := errors.New("the cable is cut")
	eachTransport(t, func(t *testing.T, near, far net.Conn) {
		c := newConn(t, failing{near, broken})
		require.NoError(t, c.Err())
		read := make(chan error, 1)
		go func() {
			_, err := c.Read(make([]byte, 1))
			read <- err
		}()
		_, err := c.Write([]byte("x"))
		require.NoError(t, err)
		within(t, patience, "Read", func() { require.ErrorIs(t, <-read, broken) })
		_, err = c.Write([]byte("x"))
		require.NoError(t, err, "the driver must not shut down from a writer's goroutine")
		require.ErrorIs(t, c.WaitRoom(t.Context()), broken)
		require.ErrorIs(t, c.Err(), broken)
		require.NoError(t, c.Close())
		_, err = far.Read(make([]byte, 1))
		require.Error(t, err, "the socket is closed")
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
		require.ErrorIs(t, c.Err(), broken, "the first reason stays")
	})
}

// failing is a conn whose writes fail.
type failing struct {
	net.Conn
	err error
}

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestLastWordsOfThePeerAreRead(t *testing.T) {
	eachTransport(t, func(t *testing.T, near, far net.Conn) {
		c := newConn(t, failing{near, errors.New("the peer has hung up")})
		c.SetHeartbeat(time.Second)
		_, err := c.Write([]byte("x"))
		require.NoError(t, err)
		within(t, patience, "the failure", func() {
			for c.Err() == nil {
				runtime.Gosched()
			}
		})
		go func() {
			_, _ = far.Write([]byte("connection.close: "))
			_, _ = far.Write([]byte("broker is shutting down"))
			far.Close()
		}()
		within(t, patience, "reading", func() {
			words, err := io.ReadAll(c)
			require.NoError(t, err)
			require.Equal(t, "connection.close: broker is shutting down", string(words))
		})
	})
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	near, far := tcpPair(t)
	drain(t, far)
	c := newConn(t, near)
	c.SetHeartbeat(10 * time.Second)
	msg := make([]byte, 300)
	allocs := testing.AllocsPerRun(20_000, func() {
		_ = c.WaitRoom(t.Context())
		_, _ = c.Write(msg)
	})
	require.Zero(t, allocs)
}

func TestAddresses(t *testing.T) {
	near, _ := tcpPair(t)
	c := newConn(t, near)
	require.Equal(t, near.LocalAddr(), c.LocalAddr())
	require.Equal(t, near.RemoteAddr(), c.RemoteAddr())
}

var _ interface{ ConnectionState() tls.ConnectionState } = (*tls.Conn)(nil) // how TLS is recognised
