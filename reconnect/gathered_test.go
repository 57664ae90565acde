package reconnect

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// shortConn is a connection that breaks inside a write: after so many bytes it sends the beginning of what it was given, and
// closes.
type shortConn struct {
	net.Conn
	left   int
	inside *atomic.Int64 // writes of more than one message that broke in their middle
}

func (c *shortConn) Write(p []byte) (int, error) {
	if c.left >= len(p) {
		c.left -= len(p)
		return c.Conn.Write(p)
	}
	n, _ := c.Conn.Write(p[:c.left])
	if len(p) > 2*messageOnTheWire && c.left > 0 {
		c.inside.Add(1)
	}
	c.left = 0
	_ = c.Conn.Close()
	return n, net.ErrClosed
}

// messageOnTheWire is less than any message of the test takes.
const messageOnTheWire = 150

// Connections that break in the middle of a write which carries the messages of several callers: each of them is told
// the truth, and each message is there.
func TestCutInsideAGatheredWrite(t *testing.T) {
	t.Parallel()
	const callers, each, dials = 64, 25, 8
	var dialed, inside atomic.Int64
	broker := testenv.Shared(t)
	p := newPubTestAt(t, broker, broker.URL(), Config{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		nc, err := new(net.Dialer).DialContext(ctx, network, address)
		n := int(dialed.Add(1))
		if err != nil || n > dials {
			return nc, err
		}
		return &shortConn{Conn: nc, left: 3000 + n*977, inside: &inside}, nil // a handshake takes some hundred
	}}, PublisherConfig{})
	queue := p.queue(nil)
	concurrently(callers, func(i int) {
		for k := range each {
			assert.NoError(t, p.p.Publish(within(t, 30*time.Second), "", queue, plainText(fmt.Sprintf("%d/%d", i, k))))
		}
	})
	require.Positive(t, inside.Load(), "no write of several messages broke")
	got := p.bodies(queue)
	require.Len(t, got, callers*each)
	t.Logf("%d connections broke inside a write of several messages; %d dials", inside.Load(), dialed.Load())
}
