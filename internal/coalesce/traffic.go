package coalesce

import "bytes"

// Written returns how many bytes Write has ever taken in.
func (c *Conn) Written() int64 { return c.writtenBytes.Load() }

// Sent returns how many of them the socket has taken, whether or not the peer has.
func (c *Conn) Sent() int64 { return c.sentBytes.Load() }

// Heard returns how often the peer has sent anything but heartbeats.
func (c *Conn) Heard() int64 { return c.heard.Load() }

// heartbeat is a whole frame of AMQP 0-9-1.
var heartbeat = []byte{8, 0, 0, 0, 0, 0, 0, 0xCE}

// onlyHeartbeats reports whether p is nothing else. Part of a heartbeat is taken for something else.
func onlyHeartbeats(p []byte) bool {
	for bytes.HasPrefix(p, heartbeat) {
		p = p[len(heartbeat):]
	}
	return len(p) == 0
}
