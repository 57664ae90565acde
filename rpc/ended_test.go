package rpc_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/report"
	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/rpc"
)

// What only looks like a direct reply-to address ends the connection of whoever sends to it, up to RabbitMQ 4.1. It is
// no queue to call, and never sent.
func TestCallToAReplyAddressIsBadInput(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	s.serve(echo, rpc.ServerConfig{})
	c := s.client(rpc.ClientConfig{})
	s.answers(c, "x", "x")
	const forged = "amq.rabbitmq.reply-to.g1h2.x"
	for name, call := range map[string]func() error{
		"as the queue": func() error { _, err := c.Call(t.Context(), forged, amqp.Publishing{}); return err },
		"in CC": func() error {
			_, err := c.Call(t.Context(), s.queue, amqp.Publishing{Headers: amqp.Table{"CC": []any{"other", forged}}})
			return err
		},
		"in BCC": func() error {
			_, err := c.Call(t.Context(), s.queue, amqp.Publishing{Headers: amqp.Table{"BCC": []any{forged}}})
			return err
		},
	} {
		err := call()
		var permanent interface{ Permanent() bool }
		require.True(t, errors.As(err, &permanent) && permanent.Permanent(), "%s: %v", name, err)
		require.ErrorContains(t, err, "reply-to", name)
		require.NotErrorIs(t, err, reconnect.ErrUnknown, name)
	}
	s.answers(c, "y", "y")
}

// neighbour is a supervised function on the link of the client.
type neighbour struct {
	runs           atomic.Int32
	apart, isThere atomic.Bool // whether it was apart ever, and is on the link since
}

func (s *setup) neighbour() *neighbour {
	s.t.Helper()
	n := new(neighbour)
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan error, 1)
	go func() {
		done <- s.clientConn.SupervisePublishing(ctx, "neighbour", reconnect.Topology{}, func(ctx context.Context, _ *amqp.Channel) error {
			n.runs.Add(1)
			if report.Careful(ctx) {
				n.apart.Store(true)
			}
			n.isThere.Store(!report.Careful(ctx))
			<-ctx.Done()
			return nil
		})
	}()
	s.t.Cleanup(func() {
		cancel()
		require.NoError(s.t, receive(s.t, done, "the neighbour's end"))
	})
	testenv.Eventually(s.t, patience, func() bool { return n.runs.Load() == 1 }, "the neighbour runs")
	return n
}

func (n *neighbour) isBack() bool { return n.apart.Load() && n.isThere.Load() }

func (s *setup) reasonOf(name string) string {
	for _, state := range s.clientConn.State() {
		if state.Name == name {
			return state.Reason
		}
	}
	return "not there"
}

// A server that answers with what the driver cannot read closes the connection of its caller each time. That costs those who share
// the link with the client two losses, and then nobody but the client.
func TestUnreadableAnswersAreContained(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	s.declare(rpc.ServerConfig{})
	deep := amqp.Table{}
	for range 60 {
		deep = amqp.Table{"in": deep}
	}
	raw := s.rawChannel()
	requests, err := raw.Consume(s.queue, "", true, false, false, false, nil)
	require.NoError(t, err)
	go func() {
		for d := range requests {
			_ = raw.Publish("", d.ReplyTo, false, false, amqp.Publishing{CorrelationId: d.CorrelationId, Headers: deep})
		}
	}()
	other := s.neighbour()
	c := s.client(rpc.ClientConfig{})
	bad := func() {
		_, err := s.call(c, "x", patience)
		require.ErrorIs(t, err, reconnect.ErrUnknown)
	}
	for !strings.Contains(s.reasonOf("rpc client, with confirmations"), "apart on a connection of its own, which") {
		require.Less(t, other.runs.Load(), int32(20), "it is noticed")
		bad()
	}
	testenv.Eventually(t, patience, other.isBack, "the neighbour is back on the link")
	before := other.runs.Load()
	for range 3 {
		bad()
	}
	require.Equal(t, before, other.runs.Load())
	require.LessOrEqual(t, before, int32(4), "it lost the link twice")
	require.Empty(t, s.reasonOf("neighbour"))
}

// A client whose neighbour ends the connection is apart for a while. When it goes back to the link, calls in progress get their
// answers, and new ones find a channel.
func TestClientComesBackFromApart(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	started, release := make(chan struct{}, 1), make(chan struct{})
	s.serve(holding(started, release), rpc.ServerConfig{Concurrency: 1})
	c := s.client(rpc.ClientConfig{})
	other := s.neighbour()

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	var bad atomic.Int32
	show := make(chan struct{})
	go func() {
		done <- s.clientConn.SupervisePublishing(ctx, "bad", reconnect.Topology{}, func(ctx context.Context, ch *amqp.Channel) error {
			if bad.Add(1) > 2 { // it is apart by now, like everybody, and shows itself when it is told to
				select {
				case <-show:
				case <-ctx.Done():
					return nil
				}
			}
			_ = ch.Publish("", s.queue, false, true, amqp.Publishing{}) // immediate, which RabbitMQ does not have
			<-ctx.Done()
			return ctx.Err()
		})
	}()
	testenv.Eventually(t, patience, func() bool { return bad.Load() >= 3 && other.apart.Load() }, "all are apart")
	answers := make(chan error, 1)
	go func() {
		_, err := s.call(c, "x", patience)
		answers <- err
	}()
	receive(t, started, "the request")
	apart := s.clientName + "/publishing/apart"
	require.NotEmpty(t, s.broker.Connections(t, apart))
	close(show)
	testenv.Eventually(t, patience, other.isBack, "nobody but the bad one need be apart any more")
	testenv.Eventually(t, patience, func() bool { return s.reasonOf("bad") != "" }, "the state says why it is apart")
	cancel()
	require.NoError(t, receive(t, done, "the bad one's end"))
	close(release)
	require.NoError(t, receive(t, answers, "the answer to a call that began apart"))
	testenv.Eventually(t, patience, func() bool { return len(s.broker.Connections(t, apart)) == 0 }, "it is back")
	s.answers(c, "y", "y")
}
