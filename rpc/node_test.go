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

// An alarm: calls wait for its end; one that ends first says why, and whether the request was on its way.
func TestAlarm(t *testing.T) {
	node := testenv.Node(t)
	s := newSetupOn(t, node.Broker, node.URL(), node.URL())
	s.serve(echo, rpc.ServerConfig{})
	c := s.client(rpc.ClientConfig{})
	s.answers(c, "before", "before")
	node.Alarm(true)
	testenv.Eventually(t, patience, func() bool { // the first ones make the broker say so
		_, err := s.call(c, "x", 200*time.Millisecond)
		return errors.Is(err, reconnect.ErrBlocked) && !errors.Is(err, reconnect.ErrUnknown) && errors.Is(err, context.DeadlineExceeded)
	}, "a call that is not sent because of the alarm")
	done := make(chan error, 1)
	go func() { _, err := s.call(c, "patient", patience); done <- err }()
	testenv.Eventually(t, patience, func() bool {
		_, err := s.call(c, "x", 50*time.Millisecond)
		return errors.Is(err, reconnect.ErrBlocked)
	}, "others wait")
	node.Alarm(false)
	require.NoError(t, receive(t, done, "answer"))
	require.Zero(t, c.Pending())
}

// A restart of the broker: persistent requests and the queue survive it, and both sides come back by themselves.
func TestBrokerRestarts(t *testing.T) {
	node := testenv.Node(t)
	s := newSetupOn(t, node.Broker, node.URL(), node.URL())
	started, release := make(chan struct{}, 10), make(chan struct{})
	s.serve(holding(started, release), rpc.ServerConfig{})
	c := s.client(rpc.ClientConfig{Persistent: true})
	pending, again := make(chan error, 1), make(chan error, 1)
	const restart = 5 * time.Minute // how long a node may take to stop and to start is the machine's business
	go func() { _, err := s.call(c, "plain", restart); pending <- err }()
	receive(t, started, "handler")
	go func() { _, err := s.call(c.Idempotent(), "again", restart); again <- err }()
	testenv.Eventually(t, patience, func() bool { return c.Pending() == 2 }, "both are pending")
	node.Stop()
	require.ErrorIs(t, receive(t, pending, "plain call"), reconnect.ErrUnknown)
	close(release)
	node.Start()
	require.NoError(t, receive(t, again, "idempotent call"))
	s.answers(c, "after", "after")
}
