package coalesce

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// Read reads from the peer. After SetHeartbeat it fails when the peer is silent for two heartbeats; that ends the
// connection. After Kill, or when a write failed and the peer has nothing more to say, the error is that one.
func (c *Conn) Read(p []byte) (int, error) {
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
