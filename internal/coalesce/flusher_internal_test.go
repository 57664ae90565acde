package coalesce

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLargeBuffersAreReleased(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	c := New(near)
	c.Kill()
	require.NoError(t, c.Close())

	c.err, c.gathered = nil, []byte("x") // the flusher has ended; take can be called from here
	_, ok := c.take(make([]byte, 0, keepBuffer))
	require.True(t, ok)
	require.Equal(t, keepBuffer, cap(c.gathered))

	c.gathered = []byte("x")
	_, ok = c.take(make([]byte, 0, keepBuffer+1))
	require.True(t, ok)
	require.Zero(t, cap(c.gathered))

	c.gathered = make([]byte, keepBuffer) // large messages come
	_, ok = c.take(nil)
	require.True(t, ok)
	c.gathered = []byte("x")
	_, ok = c.take(make([]byte, 0, keepBuffer+1))
	require.True(t, ok)
	require.Equal(t, keepBuffer+1, cap(c.gathered), "the next ones need it")
	c.gathered, c.lastLarge = []byte("x"), time.Now().Add(-keepLarge-time.Millisecond)
	_, ok = c.take(make([]byte, 0, keepBuffer+1))
	require.True(t, ok)
	require.Zero(t, cap(c.gathered))
}
