package coalesce

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// ahead is the buffer that Read fills with one system call and hands out in pieces.
type ahead struct {
	buf  []byte
	left []byte // the part of buf that has not been handed out
	err  error  // what the Read that filled buf reported
}

func newAhead(size int) ahead {
	if size <= 0 {
		return ahead{}
	}
	return ahead{buf: make([]byte, size)}
}

// Read reads from the peer. After SetHeartbeat it fails when the peer is silent for two heartbeats; that ends the
// connection. After Kill, or when a write failed and the peer has nothing more to say, the error is that one.
func (c *Conn) Read(p []byte) (int, error) {
	a := &c.ahead
	if len(a.left) == 0 && a.err == nil {
		if len(p) >= len(a.buf) {
			return c.read(p)
		}
		n, err := c.read(a.buf)
		a.left, a.err = a.buf[:n], err
	}
	n := copy(p, a.left)
	a.left = a.left[n:]
	if len(a.left) > 0 {
		return n, nil
	}
	err := a.err
	a.err = nil
	return n, err
}

// read reads from the socket and turns its error into the one that explains it.
func (c *Conn) read(p []byte) (int, error) {
	c.deadlines.beforeRead()
	n, err := c.nc.Read(p)
	if !onlyHeartbeats(p[:n]) {
		c.heard.Add(1)
	}
	if err == nil {
		return n, nil
	}
	c.readFailed.Store(true)
	if errors.Is(err, os.ErrDeadlineExceeded) && c.deadlines.silent() {
		c.fail(fmt.Errorf("nothing received for two heartbeats: %w", err))
	}
	if cause := c.failure(); cause != nil && !errors.Is(err, io.EOF) {
		err = cause
	}
	return n, err
}

// ReadFailed reports whether a Read from the socket has failed, be it with EOF. The driver tells of such failures in the
// same way as of bytes that it cannot make sense of; with this the two can be told apart.
func (c *Conn) ReadFailed() bool { return c.readFailed.Load() }

// failure returns why the connection is over, or nil; a Close that is still flushing is none.
func (c *Conn) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}
