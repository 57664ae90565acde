package reconnect

import (
	"context"
	"encoding/binary"
	"net"
	"sync/atomic"
)

// closeCounter counts the channel.close methods that the broker sends on the connections it dials.
type closeCounter struct{ n atomic.Int64 }

func (c *closeCounter) dial(ctx context.Context, network, address string) (net.Conn, error) {
	nc, err := new(net.Dialer).DialContext(ctx, network, address)
	return &closeCounting{Conn: nc, counter: c}, err
}

type closeCounting struct {
	net.Conn
	counter *closeCounter
	seen    []byte // of the frame that is coming in
	skip    int    // bytes of a frame that is of no interest
}

func (c *closeCounting) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.scan(p[:n])
	return n, err
}

// scan looks at the first 11 bytes of each frame: type, channel, size, class, method.
func (c *closeCounting) scan(p []byte) {
	const header, start, end = 7, 11, 1
	for len(p) > 0 {
		if c.skip > 0 {
			n := min(c.skip, len(p))
			c.skip -= n
			p = p[n:]
			continue
		}
		c.seen = append(c.seen, p[0])
		p = p[1:]
		if len(c.seen) < header {
			continue
		}
		size := int(binary.BigEndian.Uint32(c.seen[3:]))
		if len(c.seen) < min(start, header+size) {
			continue
		}
		if c.seen[0] == 1 && size >= 4 && binary.BigEndian.Uint16(c.seen[7:]) == 20 && binary.BigEndian.Uint16(c.seen[9:]) == 40 {
			c.counter.n.Add(1)
		}
		c.skip = header + size + end - len(c.seen)
		c.seen = c.seen[:0]
	}
}
