package coalesce_test

import (
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTraffic(t *testing.T) {
	near, far := net.Pipe() // takes bytes when they are read
	c := newConn(t, near)
	_, err := c.Write(make([]byte, 1000))
	require.NoError(t, err)
	require.Equal(t, int64(1000), c.Written())
	require.Zero(t, c.Sent())
	within(t, patience, "reading", func() { _, _ = io.ReadFull(far, make([]byte, 1000)) })

	beat := "\x08\x00\x00\x00\x00\x00\x00\xce"
	for _, tt := range []struct {
		text  string
		heard int64
	}{{beat, 0}, {beat + beat, 0}, {"x", 1}, {beat + "x", 2}, {"x" + beat, 3}, {beat[:4], 4}, {beat[4:], 5}, {beat, 5}} {
		within(t, patience, "reading", func() {
			go func() { _, _ = far.Write([]byte(tt.text)) }()
			_, err = io.ReadAtLeast(c, make([]byte, 100), len(tt.text))
		})
		require.NoError(t, err)
		require.Equal(t, tt.heard, c.Heard(), "%q", tt.text)
	}

	require.NoError(t, c.Close()) // has ended the flusher
	require.Equal(t, int64(1000), c.Sent())
	_, _ = c.Write([]byte("x"))
	require.Equal(t, int64(1000), c.Written(), "it is dropped")
}
