package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/rpc"
)

// A16, P37: the link dies with calls in flight: all of them end at once, in doubt, and later ones work.
func TestA16P37LinkLostWithCallsInFlight(t *testing.T) {
	t.Parallel()
	const calls = 20
	s := newSetup(t)
	started, release := make(chan struct{}, 2*calls), make(chan struct{})
	s.serve(holding(started, release), rpc.ServerConfig{Concurrency: calls})
	c := s.client(rpc.ClientConfig{})
	errs := make(chan error, calls)
	for i := range calls {
		go func() { _, err := s.call(c, strconv.Itoa(i), patience); errs <- err }()
	}
	for range calls {
		receive(t, started, "handler")
	}
	began := time.Now()
	require.Positive(t, s.broker.CutConnections(t, s.clientName))
	for range calls {
		err := receive(t, errs, "call")
		require.ErrorIs(t, err, reconnect.ErrUnknown)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
	}
	took(t, began, time.Second, "the end of all pending calls")
	require.Zero(t, c.Pending())
	close(release) // the late answers lead nowhere
	s.answers(c, "after", "after")
	require.Zero(t, c.Dropped(), "the address of the old channel is gone")
}

// P37: only the channel is lost.
func TestP37ChannelLost(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	started, release := make(chan struct{}, 10), make(chan struct{})
	s.serve(holding(started, release), rpc.ServerConfig{})
	c := s.client(rpc.ClientConfig{})
	errs := make(chan error, 1)
	go func() { _, err := s.call(c, "x", patience); errs <- err }()
	receive(t, started, "handler")
	require.Positive(t, s.broker.CloseChannels(t, s.clientName))
	require.ErrorIs(t, receive(t, errs, "call"), reconnect.ErrUnknown)
	close(release)
	s.answers(c, "after", "after")
}

// P37: a call that may be repeated is, with the same MessageId, when the link is lost; a server that executes once sees that.
func TestP37IdempotentCallsAreSentAgain(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	ids, release := make(chan string, 10), make(chan struct{})
	s.serve(func(ctx context.Context, d amqp.Delivery) (amqp.Publishing, error) {
		ids <- d.MessageId
		select {
		case <-release:
		case <-ctx.Done():
		}
		return echo(ctx, d)
	}, rpc.ServerConfig{Concurrency: 2})
	c := s.client(rpc.ClientConfig{}).Idempotent()
	done := make(chan error, 1)
	go func() {
		body, err := s.call(c, "twice", patience)
		if err == nil && body != "twice" {
			err = errors.New(body)
		}
		done <- err
	}()
	first := receive(t, ids, "first")
	require.Positive(t, s.broker.CutConnections(t, s.clientName))
	require.Equal(t, first, receive(t, ids, "second"))
	close(release)
	require.NoError(t, receive(t, done, "answer"))
	require.Zero(t, c.Pending())
}

// Calls wait for a link that is down, as long as their contexts let them, and are not in doubt then.
func TestCallsWaitForTheLink(t *testing.T) {
	t.Parallel()
	broker := testenv.Shared(t)
	proxy := testenv.Proxy(t, broker.URL())
	s := newSetupOn(t, broker, proxy.URL(), broker.URL())
	s.serve(echo, rpc.ServerConfig{})
	c := s.client(rpc.ClientConfig{})
	s.answers(c, "before", "before")
	proxy.Refuse()
	proxy.Cut()
	testenv.Eventually(t, patience, func() bool {
		_, err := s.call(c, "x", 100*time.Millisecond)
		return errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, reconnect.ErrUnknown)
	}, "a call that was never sent")
	done := make(chan error, 1)
	go func() { _, err := s.call(c, "patient", patience); done <- err }()
	testenv.Eventually(t, patience, func() bool { return s.clientConn.State()[0].Phase != "connected" }, "the link is down")
	proxy.Heal()
	require.NoError(t, receive(t, done, "answer"))
}

// A link that is frozen says nothing: calls end with their contexts, in doubt, and Close is not held up.
func TestFrozenLink(t *testing.T) {
	t.Parallel()
	broker := testenv.Shared(t)
	proxy := testenv.Proxy(t, broker.URL())
	s := newSetupOn(t, broker, proxy.URL(), broker.URL())
	s.serve(echo, rpc.ServerConfig{})
	c := s.client(rpc.ClientConfig{})
	s.open(c)
	proxy.Freeze()
	began := time.Now()
	_, err := s.call(c, "x", 300*time.Millisecond)
	took(t, began, 400*time.Millisecond, "the call")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, reconnect.ErrUnknown)
	proxy.Heal()
	s.answers(c, "after", "after")
}

// A server that is killed while it works: the caller of a plain call is told that nobody knows, that of an idempotent
// one gets its answer from another server.
func TestServerKilledWhileWorking(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	started := make(chan struct{}, 10)
	forever := make(chan struct{})
	defer close(forever)
	victim := s.dial(s.url, reconnect.Config{Name: s.name + "-victim", BackoffMin: time.Hour, BackoffMax: time.Hour})
	s.serveOn(victim, holding(started, forever), rpc.ServerConfig{Concurrency: 2})
	plain := s.client(rpc.ClientConfig{})
	errs, answers := make(chan error, 1), make(chan error, 1)
	go func() { _, err := s.call(plain, "plain", patience); errs <- err }()
	go func() {
		body, err := s.call(plain.Idempotent(), "again", patience)
		if err == nil && body != "from the other" {
			err = errors.New(body)
		}
		answers <- err
	}()
	receive(t, started, "handler")
	receive(t, started, "handler")
	var runs atomic.Int64
	s.serve(func(_ context.Context, d amqp.Delivery) (amqp.Publishing, error) {
		runs.Add(1)
		return amqp.Publishing{Body: []byte("from the other")}, nil
	}, rpc.ServerConfig{})
	began := time.Now()
	require.Positive(t, s.broker.CutConnections(t, s.name+"-victim"))
	require.ErrorIs(t, receive(t, errs, "call"), reconnect.ErrUnknown)
	took(t, began, time.Second, "the news that the server is gone")
	require.NoError(t, receive(t, answers, "answer"))
	require.EqualValues(t, 1, runs.Load(), "the plain one is not executed again")
}

// Requests that come again: executed only where the caller, or the server, says that they may be.
func TestRedeliveredRequests(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		headers  amqp.Table
		cfg      rpc.ServerConfig
		executed bool
	}{
		"plain":                 {nil, rpc.ServerConfig{}, false},
		"forged mark":           {amqp.Table{"warren-idempotent": "true"}, rpc.ServerConfig{}, false},
		"idempotent call":       {amqp.Table{"warren-idempotent": true}, rpc.ServerConfig{}, true},
		"idempotent server":     {nil, rpc.ServerConfig{Idempotent: true}, true},
		"both, and prefetching": {amqp.Table{"warren-idempotent": true}, rpc.ServerConfig{Idempotent: true, Prefetch: 5}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSetup(t)
			s.declare(tt.cfg)
			raw := s.rawClient()
			raw.send(amqp.Publishing{CorrelationId: "1", Headers: tt.headers, Body: []byte("body")})
			other := s.rawChannel()
			testenv.Eventually(t, patience, func() bool { _, ok, err := other.Get(s.queue, false); require.NoError(t, err); return ok }, "a server that takes it")
			require.NoError(t, other.Close()) // and dies
			s.serve(echo, tt.cfg)
			reply := receive(t, raw.replies, "reply")
			require.Equal(t, "1", reply.CorrelationId)
			if tt.executed {
				require.Equal(t, "body", string(reply.Body))
				require.Nil(t, reply.Headers["warren-rpc"])
			} else {
				require.Equal(t, "unknown", reply.Headers["warren-rpc"])
			}
		})
	}
}

// The server's consuming link is lost under a handler that finishes all the same: its answer is sent.
func TestAnswerAfterTheRequestsChannelIsLost(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	entered := make(chan context.Context, 10)
	server, stop := s.serve(func(ctx context.Context, d amqp.Delivery) (amqp.Publishing, error) {
		entered <- ctx
		<-ctx.Done()
		return amqp.Publishing{Body: []byte("done all the same")}, nil
	}, rpc.ServerConfig{})
	c := s.client(rpc.ClientConfig{})
	done := make(chan string, 1)
	go func() {
		body, err := s.call(c, "x", patience)
		done <- fmt.Sprint(body, err)
	}()
	ctx := receive(t, entered, "handler")
	for _, ch := range s.broker.Channels(t, s.serverName) {
		require.NotEmpty(t, ch.Connection)
	}
	require.Positive(t, s.broker.CutConnections(t, s.serverName))
	<-ctx.Done()
	require.ErrorIs(t, ctx.Err(), context.Canceled)
	got := receive(t, done, "answer")
	// Whoever is first: the handler's answer, or the server's own next life, which only knows that there was one before.
	require.True(t, got == "done all the same<nil>" || errorsText(got), got)
	require.NoError(t, stop())
	require.Zero(t, server.Expired())
}

func errorsText(s string) bool { return len(s) > 0 && s != "done all the same<nil>" }
