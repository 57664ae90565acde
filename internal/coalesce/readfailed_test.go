package coalesce_test

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/coalesce"
)

// Only a Read that failed counts: neither a failed write, before Read has told of it, nor a close.
func TestReadFailed(t *testing.T) {
	eachTransport(t, func(t *testing.T, near, far net.Conn) {
		c := newConn(t, near)
		go func() { _, _ = far.Write([]byte("x")) }()
		_, err := c.Read(make([]byte, 1))
		require.NoError(t, err)
		require.NoError(t, c.Close())
		require.False(t, c.ReadFailed())
		within(t, patience, "reading", func() { _, err = c.Read(make([]byte, 1)) })
		require.Error(t, err)
		require.True(t, c.ReadFailed())
	})
	for name, end := range map[string]func(c *coalesce.Conn, far net.Conn){
		"end":     func(_ *coalesce.Conn, far net.Conn) { _ = far.Close() },
		"silence": func(c *coalesce.Conn, _ net.Conn) { c.SetHeartbeat(20 * time.Millisecond) },
	} {
		t.Run(name, func(t *testing.T) {
			near, far := tcpPair(t)
			c := newConn(t, near)
			end(c, far)
			var err error
			within(t, patience, "reading", func() { _, err = c.Read(make([]byte, 1)) })
			require.Error(t, err)
			require.True(t, c.ReadFailed())
		})
	}
}
