package rpc_test

import (
	"context"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/rpc"
)

// Cancelling a call returns at once; where it is asked for, the handler's context ends, whichever server has it, and also
// when the call was cancelled before a server had it.
func TestCancel(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	started, ended := make(chan struct{}, 10), make(chan error, 10)
	h := func(ctx context.Context, _ amqp.Delivery) (amqp.Publishing, error) {
		started <- struct{}{}
		<-ctx.Done()
		ended <- ctx.Err()
		return amqp.Publishing{}, ctx.Err()
	}
	server, _ := s.serve(h, rpc.ServerConfig{})
	s.serve(h, rpc.ServerConfig{})
	c := s.client(rpc.ClientConfig{NotifyCancel: true})
	call := func() (cancel func(), done chan error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		done = make(chan error, 1)
		go func() { _, err := c.Call(ctx, s.queue, amqp.Publishing{}); done <- err }()
		return cancel, done
	}
	for range 4 {
		cancel, done := call()
		receive(t, started, "handler")
		began := time.Now()
		cancel()
		err := receive(t, done, "call")
		took(t, began, 300*time.Millisecond, "the call")
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, reconnect.ErrUnknown)
		require.ErrorIs(t, receive(t, ended, "the handler's end"), context.Canceled)
		took(t, began, 500*time.Millisecond, "the handler's end")
	}
	require.Zero(t, c.Pending())
	require.Zero(t, server.Unanswered())
	for range 2 { // both are busy
		cancel, _ := call()
		defer cancel()
		receive(t, started, "handler")
	}
	cancel, done := call() // this one waits in the queue
	testenv.Eventually(t, patience, func() bool { return s.broker.Queue(t, s.queue).Ready == 1 }, "it waits")
	cancel()
	require.ErrorIs(t, receive(t, done, "call"), context.Canceled)
	third := s.dial(s.url, reconnect.Config{Name: s.name + "-third"})
	s.serveOn(third, h, rpc.ServerConfig{})
	receive(t, started, "the third server has it")
	require.ErrorIs(t, receive(t, ended, "the handler's end"), context.Canceled)
}

// Without NotifyCancel a cancelled call's handler goes on until the deadline.
func TestCancelWithoutNotice(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	started, release := make(chan struct{}, 10), make(chan struct{})
	s.serve(holding(started, release), rpc.ServerConfig{})
	c := s.client(rpc.ClientConfig{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := c.Call(ctx, s.queue, amqp.Publishing{}); done <- err }()
	receive(t, started, "handler")
	cancel()
	require.ErrorIs(t, receive(t, done, "call"), context.Canceled)
	require.Zero(t, c.Pending())
	close(release)
	testenv.Eventually(t, patience, func() bool { return c.Dropped() == 1 }, "its answer is late")
}

// A server that names no channel as the one that takes the cancel must not cost the client its connection.
func TestForgedCancelAddress(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	s.declare(rpc.ServerConfig{})
	c := s.client(rpc.ClientConfig{NotifyCancel: true})
	raw := s.rawClient()
	in, err := raw.ch.Consume(s.queue, "", true, false, false, false, nil)
	require.NoError(t, err)
	forged := forgedAddresses(t, raw)
	connected := func() []testenv.ConnInfo { return s.broker.Connections(t, s.clientName) }
	var first []testenv.ConnInfo
	testenv.Eventually(t, patience, func() bool { first = connected(); return len(first) == 1 }, "connected")
	before := c.Dropped()
	for _, to := range forged {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		done := make(chan error, 1)
		go func() { _, err := c.Call(ctx, s.queue, amqp.Publishing{}); done <- err }()
		d := receive(t, in, "the request")
		require.NoError(t, raw.ch.Publish("", d.ReplyTo, false, false, amqp.Publishing{CorrelationId: d.CorrelationId,
			ReplyTo: "amq.rabbitmq.reply-to." + to, Headers: amqp.Table{"warren-rpc": "started"}}))
		// Behind it comes what nobody waits for, so that the other is known to have been read.
		require.NoError(t, raw.ch.Publish("", d.ReplyTo, false, false, amqp.Publishing{CorrelationId: "nobody"}))
		before++
		testenv.Eventually(t, patience, func() bool { return c.Dropped() == before }, "it has been read")
		cancel()
		require.ErrorIs(t, receive(t, done, "the call"), context.Canceled)
	}
	var left []testenv.ConnInfo
	testenv.Eventually(t, patience, func() bool { left = connected(); return len(left) == 1 }, "those on which addresses were tried have gone")
	require.Equal(t, first[0].PeerPort, left[0].PeerPort, "still its first connection")
	require.NoError(t, c.Close(t.Context()))
}
