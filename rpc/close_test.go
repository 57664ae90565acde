package rpc_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/rpc"
)

// The Conn's Close ends its clients: pending calls get their answer, new ones are refused.
func TestCloseOfTheConnLetsPendingCallsEnd(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	started, release := make(chan struct{}, 10), make(chan struct{})
	s.serve(holding(started, release), rpc.ServerConfig{})
	conn := s.dial(s.url, reconnect.Config{Name: s.name + "-closing"})
	c, err := rpc.NewClient(conn, rpc.ClientConfig{})
	require.NoError(t, err)
	answered := make(chan error, 1)
	go func() { _, err := s.call(c, "pending", patience); answered <- err }()
	receive(t, started, "a handler")
	closed := make(chan error, 1)
	go func() { closed <- conn.Close(context.Background()) }()
	testenv.Eventually(t, patience, func() bool { _, err := s.call(c, "new", time.Second); return errors.Is(err, reconnect.ErrClosed) }, "new calls are refused")
	close(release)
	require.NoError(t, receive(t, answered, "answer"))
	require.NoError(t, receive(t, closed, "close"))
	_, err = s.call(c, "new", time.Second)
	require.ErrorIs(t, err, reconnect.ErrClosed)
}

// Close is bounded by its context: what is pending then ends in doubt.
func TestCloseIsBounded(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	started, release := make(chan struct{}, 10), make(chan struct{})
	s.serve(holding(started, release), rpc.ServerConfig{})
	defer close(release)
	c := s.client(rpc.ClientConfig{})
	answered := make(chan error, 1)
	go func() { _, err := s.call(c, "pending", patience); answered <- err }()
	receive(t, started, "a handler")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	require.ErrorIs(t, c.Close(ctx), context.DeadlineExceeded)
	took(t, began, 600*time.Millisecond, "Close")
	err := receive(t, answered, "answer")
	require.ErrorIs(t, err, reconnect.ErrUnknown)
	require.ErrorIs(t, err, reconnect.ErrClosed)
	require.Zero(t, c.Pending())
	unused := s.client(rpc.ClientConfig{})
	require.NoError(t, unused.Close(t.Context()))
	_, err = s.call(unused, "x", time.Second)
	require.ErrorIs(t, err, reconnect.ErrClosed)
}
