package coalesce

import (
	"context"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	softLimit   = 256 << 10 // of gathered bytes
	firstBuffer = 16 << 10
	keepBuffer  = 1 << 20       // a buffer up to this size is kept,
	keepLarge   = time.Second   // a larger one for so long after it was needed
	dead        = math.MaxInt64 // the value of Conn.load when nothing may be written any more
)

// Conn is a net.Conn that gathers what is written to it. See the package comment.
//
// Lock order: mu and deadlines.mu are never held together, and neither is held during I/O.
type Conn struct {
	nc   net.Conn
	load atomic.Int64  // bytes gathered and not yet written, or dead: what WaitRoom looks at
	done chan struct{} // closed when the flusher has ended

	mu       sync.Mutex
	wake     sync.Cond     // of mu: there is something to write, or the end has come
	gathered []byte        // what the flusher will take next
	unsent   int64         // len(gathered) and what the flusher holds
	room     chan struct{} // closed when there is room again; nil when nobody waits

	lastLarge time.Time // when the flusher last took much
	closing   bool
	err       error // why the connection is over; sticky

	deadlines  deadlines
	readFailed atomic.Bool

	writtenBytes, sentBytes, heard atomic.Int64
}

var _ net.Conn = (*Conn)(nil)

// New wraps nc, which the returned Conn owns from then on, and starts the flusher; Close or Kill must be called to end
// it. For TLS, nc is the *tls.Conn, so that whole batches and not single messages become TLS records.
func New(nc net.Conn) *Conn {
	c := &Conn{
		nc:       nc,
		done:     make(chan struct{}),
		gathered: make([]byte, 0, firstBuffer),
	}
	c.wake.L = &c.mu
	c.deadlines.init(nc)
	go c.flush()
	return c
}

// Write gathers a copy of p for the flusher and returns at once, always without an error: once the connection is over p
// is dropped, and it is Read that says so, as for whatever was written just before. An error of Write would make the
// driver shut down from the writer's goroutine, which closes the channel of connection.blocked notices under its reader:
// a panic of the whole process.
func (c *Conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || c.closing {
		return len(p), nil
	}
	c.gathered = append(c.gathered, p...)
	c.unsent += int64(len(p))
	c.writtenBytes.Add(int64(len(p)))
	c.load.Store(c.unsent)
	c.wake.Signal()
	return len(p), nil
}

// WaitRoom returns nil as soon as no more than the soft limit of 256 KiB is gathered. Otherwise it waits for that, for the
// end of ctx (its error) or for the end of the connection (the error of Err). Room is not reserved: callers that are let
// in together may exceed the limit by what each of them writes. When there is room ctx is not looked at.
func (c *Conn) WaitRoom(ctx context.Context) error {
	for c.load.Load() > softLimit {
		room, err := c.awaitedRoom()
		if err != nil {
			return err
		}
		if room == nil {
			continue
		}
		select {
		case <-room:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// HasRoom reports whether no more than the soft limit is gathered, and the connection is not over: WaitRoom would return
// nil at once.
func (c *Conn) HasRoom() bool { return c.load.Load() <= softLimit }

// awaitedRoom returns the channel that is closed when there is room again, or nil when there is some since the caller
// looked, or the reason why there never will be any.
func (c *Conn) awaitedRoom() (<-chan struct{}, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil, c.err
	}
	if c.closing {
		return nil, net.ErrClosed
	}
	if c.room == nil && c.unsent > softLimit {
		c.room = make(chan struct{})
	}
	return c.room, nil
}

// wakeWaiting makes everybody in WaitRoom look again. The caller holds mu.
func (c *Conn) wakeWaiting() {
	if c.room != nil {
		close(c.room)
		c.room = nil
	}
}

// Err returns what ended the connection: the first failure of a write, or the silence of the peer, or net.ErrClosed
// after Close or Kill. It is nil while the connection lives. The driver passes on only the text of such errors.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil && c.closing {
		return net.ErrClosed
	}
	return c.err
}

// LocalAddr returns the address of this end.
func (c *Conn) LocalAddr() net.Addr { return c.nc.LocalAddr() }

// RemoteAddr returns the address of the peer.
func (c *Conn) RemoteAddr() net.Addr { return c.nc.RemoteAddr() }

// SetHeartbeat tells the negotiated heartbeat; it is called once, after the handshake. From then on Read, also one in
// progress, fails with a timeout after two heartbeats without a byte (at most a quarter more), and so does the flusher
// when the peer takes nothing for that long. SetReadDeadline has no effect any more, since the driver would use it to
// weaken that. 0 means that there are no heartbeats, and no limits.
func (c *Conn) SetHeartbeat(d time.Duration) { c.deadlines.setHeartbeat(d) }

// SetBlocked tells whether the broker blocks the connection. While it does, the flusher may wait for as long as that
// takes, also with a write in progress; afterwards the peer has two heartbeats again. Deadlines given to SetDeadline
// and SetWriteDeadline hold all the same, and so does the limit on reading.
func (c *Conn) SetBlocked(blocked bool) { c.deadlines.setBlocked(blocked) }

// SetDeadline bounds all reading and writing, also what is in progress, by t; other limits hold as well, the earliest
// wins. The zero time takes away this deadline and those of SetReadDeadline and SetWriteDeadline. It always returns nil,
// for the reason that Write does.
func (c *Conn) SetDeadline(t time.Time) error {
	_ = c.deadlines.setBoth(t) // fails on a closed socket only
	return nil
}

// SetReadDeadline bounds Read by t, until SetHeartbeat is called; from then on it does nothing.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.deadlines.setRead(t) }

// SetWriteDeadline bounds the flusher by t. Write itself never waits.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.deadlines.setWrite(t) }
