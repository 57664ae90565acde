package coalesce

import (
	"errors"
	"net"
	"os"
	"time"
)

// readLimit bounds what Read may still read after a write has failed.
const readLimit = time.Second

// fail makes err the end of the connection, unless it is over already. When the peer has closed its side, what it had
// to say about that may still be on its way to the reader (connection.close with the reason), so the reader gets a
// moment to find the end by itself. A peer that is silent has nothing to say.
func (c *Conn) fail(err error) {
	c.finish(err)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.drop()
		return
	}
	c.deadlines.boundRead(time.Now().Add(readLimit))
}

// finish makes err the end of the connection, unless it is over already.
func (c *Conn) finish(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil:
	case c.closing: // who closed it need not hear that the rest could not be written
		c.err = net.ErrClosed
	default:
		c.err = err
	}
	c.end()
}

// end wakes the flusher and all that wait for room, for the last time. The caller holds mu.
func (c *Conn) end() {
	c.load.Store(dead)
	c.wake.Broadcast()
	c.wakeWaiting()
}

// drop closes the socket at once. A *tls.Conn would first send its farewell, which takes up to 5 s with a frozen peer.
func (c *Conn) drop() {
	nc := c.nc
	if t, ok := nc.(interface{ NetConn() net.Conn }); ok {
		nc = t.NetConn()
	}
	_ = nc.Close()
}

// closeLimit bounds the whole of Close.
const closeLimit = time.Second

// Close writes what is gathered, for at most a second, then closes the socket; it returns when that is done and the
// flusher has ended. When the peer is known to be silent, or after Kill, nothing is written. It is idempotent and
// always returns nil.
func (c *Conn) Close() error {
	c.mu.Lock()
	c.closing = true
	c.end()
	c.mu.Unlock()
	c.deadlines.boundClose(time.Now().Add(closeLimit))

	timer := time.NewTimer(closeLimit)
	defer timer.Stop()
	select {
	case <-c.done:
		c.drop() // after a failure nobody has done that yet
	case <-timer.C:
		c.Kill()
		<-c.done
	}
	return nil
}

// Kill closes the socket at once; what is gathered is lost. It does not wait, and it is idempotent.
func (c *Conn) Kill() {
	c.finish(net.ErrClosed)
	c.drop()
}
