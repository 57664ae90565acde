package coalesce

import (
	"errors"
	"os"
	"time"
)

const (
	chunk    = 64 << 10
	chunkTLS = 16 << 10 // one TLS record
)

// flush is the flusher: it swaps two buffers with Write until the end.
func (c *Conn) flush() {
	defer close(c.done)
	var out []byte
	for {
		var ok bool
		if out, ok = c.take(out); !ok {
			return
		}
		if len(out) == 0 { // closing, and everything is written
			_ = c.nc.Close()
			return
		}
		if err := c.writeAll(out); err != nil {
			c.fail(err)
			return
		}
	}
}

// take waits for gathered bytes and exchanges them for the empty buffer, whose content has been written. It returns
// nothing when the connection is closing and nothing is left, and false when it has failed or was killed.
func (c *Conn) take(empty []byte) ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.outgrown(empty) {
		empty = nil
	}
	for len(c.gathered) == 0 && !c.closing && c.err == nil {
		c.wake.Wait()
	}
	if c.err != nil {
		return nil, false
	}
	full := c.gathered
	c.gathered = empty[:0]
	if len(full) > keepBuffer/4 {
		c.lastLarge = time.Now()
	}
	return full, true
}

// outgrown reports whether a buffer is larger than is needed now: large messages must not hold their memory for the life of
// the connection. While more of them come it is used again, since to grow one costs several times what writing does. The
// driver's heartbeats have an idle connection look, too.
func (c *Conn) outgrown(buffer []byte) bool {
	return cap(buffer) > keepBuffer && time.Since(c.lastLarge) > keepLarge
}

// writeAll writes p in chunks, so that the limit on a write is not a limit on the size of a message.
func (c *Conn) writeAll(p []byte) error {
	size := chunk
	if c.deadlines.whole {
		size = chunkTLS
	}
	for len(p) > 0 {
		n := min(size, len(p))
		if err := c.writeChunk(p[:n]); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// writeChunk writes p, going on after a timeout for as long as the peer takes something or the broker blocks us.
func (c *Conn) writeChunk(p []byte) error {
	for progress := true; ; {
		c.deadlines.beforeWrite(progress)
		n, err := c.nc.Write(p)
		c.written(n)
		if err == nil {
			return nil
		}
		progress = n > 0
		if !errors.Is(err, os.ErrDeadlineExceeded) || !c.deadlines.mayGoOn(progress) {
			return err
		}
		p = p[n:]
		if len(p) == 0 {
			return nil
		}
	}
}

// written accounts for n bytes that have left and lets in who waited for that.
func (c *Conn) written(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unsent -= int64(n)
	c.sentBytes.Add(int64(n))
	if c.closing || c.err != nil { // load says dead, and nobody waits
		return
	}
	c.load.Store(c.unsent)
	if c.unsent <= softLimit {
		c.wakeWaiting()
	}
}
