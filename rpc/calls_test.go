package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/rpc"
)

// A16, P35: many calls at once on one client, half of them cancelled, disturb nobody.
func TestA16P35ParallelCallsHalfCancelled(t *testing.T) {
	t.Parallel()
	const calls = 200
	s := newSetup(t)
	started, release := make(chan struct{}, 3*calls), make(chan struct{})
	s.serve(holding(started, release), rpc.ServerConfig{Concurrency: 20})
	c := s.client(rpc.ClientConfig{})

	var wg sync.WaitGroup
	var cancelled, answered, wrong atomic.Int64
	for i := range calls {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		t.Cleanup(cancel)
		wg.Go(func() {
			want := strconv.Itoa(i)
			d, err := c.Call(ctx, s.queue, amqp.Publishing{Body: []byte(want)})
			switch {
			case errors.Is(err, context.Canceled):
				cancelled.Add(1)
			case err == nil && string(d.Body) == want:
				answered.Add(1)
			default:
				wrong.Add(1)
				t.Log(want, string(d.Body), err)
			}
		})
		if i%2 == 1 {
			time.AfterFunc(time.Duration(i)*time.Millisecond, cancel)
		}
	}
	testenv.Eventually(t, patience, func() bool { return cancelled.Load() == calls/2 }, "half of them are cancelled")
	close(release)
	wg.Wait()
	require.Zero(t, wrong.Load())
	require.EqualValues(t, calls/2, answered.Load())
	require.Zero(t, c.Pending())
	for i := range calls {
		wg.Go(func() { s.answers(c, fmt.Sprint("again ", i), fmt.Sprint("again ", i)) })
	}
	wg.Wait()
	require.Zero(t, c.Pending())
	for _, state := range s.clientConn.State() {
		require.NotEqual(t, "waiting", state.Phase)
		require.LessOrEqual(t, state.Attempts, 1, "%+v: the channel has not been lost", state)
	}
}

// P35: the rules of direct reply-to bind the client's own channels, which nothing else uses; several clients have several.
func TestP35EachClientHasItsOwnChannels(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	s.serve(echo, rpc.ServerConfig{})
	a, b := s.client(rpc.ClientConfig{}), s.client(rpc.ClientConfig{})
	for range 3 {
		s.answers(a, "a", "a")
		s.answers(b, "b", "b")
		s.answers(a.Idempotent().WithHeaders(amqp.Table{"x": "y"}), "same as a", "same as a")
	}
	require.Len(t, s.broker.Channels(t, s.clientName), 4, "one with and one without confirmations each")
	require.NoError(t, a.Close(t.Context()))
	s.answers(b, "still there", "still there")
	_, err := s.call(a, "", time.Second)
	require.ErrorIs(t, err, reconnect.ErrClosed)
	require.NotErrorIs(t, err, reconnect.ErrUnknown)
	require.NoError(t, a.Close(t.Context()))
	testenv.Eventually(t, patience, func() bool { return len(s.broker.Channels(t, s.clientName)) == 2 }, "its channels are closed")
}

// A16, P36: late answers and second ones are dropped and counted, and leave no call behind.
func TestA16P36LateAndDoubleReplies(t *testing.T) {
	t.Parallel()
	const calls = 1000
	s := newSetup(t)
	s.declare(rpc.ServerConfig{})
	// A responder that has not read the rules: it answers when it is too late, or twice.
	ch := s.rawChannel()
	requests, err := ch.Consume(s.queue, "", true, false, false, false, nil)
	require.NoError(t, err)
	held := make(chan amqp.Delivery, 2*calls)
	answer := func(d amqp.Delivery) {
		_ = ch.Publish("", d.ReplyTo, false, false, amqp.Publishing{CorrelationId: d.CorrelationId, Body: d.Body})
	}
	go func() {
		for d := range requests {
			switch string(d.Body) {
			case "late":
				held <- d
			case "open":
				answer(d)
			default:
				answer(d)
				answer(d)
			}
		}
	}()
	c := s.client(rpc.ClientConfig{})
	s.open(c)
	var wg sync.WaitGroup
	var timedOut atomic.Int64
	for range calls {
		wg.Go(func() {
			_, err := s.call(c, "late", 3*time.Second) // far above what sending all of them takes: those that are sent are in doubt
			if errors.Is(err, context.DeadlineExceeded) && errors.Is(err, reconnect.ErrUnknown) {
				timedOut.Add(1)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, calls, timedOut.Load())
	require.Zero(t, c.Pending())
	var sent int64 // the broker may have let some expire
	testenv.Eventually(t, patience, func() bool {
		for ; len(held) > 0; sent++ {
			answer(<-held)
		}
		return s.broker.Queue(t, s.queue).Ready == 0 && sent > 0 && c.Dropped() == sent
	}, "late answers are counted")

	for i := range 100 {
		s.answers(c, fmt.Sprint(i), fmt.Sprint(i))
	}
	testenv.Eventually(t, patience, func() bool {
		for ; len(held) > 0; sent++ {
			answer(<-held)
		}
		return c.Dropped() == sent+100
	}, "second answers are counted")
	require.Zero(t, c.Pending())
}

// P36: what somebody sends to the client's address without knowing a call's id answers nobody.
func TestP36ForeignReplies(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	address, ids := make(chan string, 1), make(chan string, 1)
	release := make(chan struct{})
	s.serve(func(ctx context.Context, d amqp.Delivery) (amqp.Publishing, error) {
		address <- d.ReplyTo
		ids <- d.CorrelationId
		<-release
		return echo(ctx, d)
	}, rpc.ServerConfig{})
	c := s.client(rpc.ClientConfig{})
	done := make(chan error, 1)
	go func() {
		body, err := s.call(c, "mine", patience)
		if err == nil && body != "mine" {
			err = errors.New(body)
		}
		done <- err
	}()
	to, id := receive(t, address, "address"), receive(t, ids, "id")
	ch := s.rawChannel()
	foreign := []amqp.Publishing{{}, {CorrelationId: "1"}, {CorrelationId: id[:len(id)-1]}, {CorrelationId: id + "0"},
		{Headers: amqp.Table{"warren-rpc": "error"}, Body: []byte(`{"code":"x"}`)}, {Headers: amqp.Table{"warren-rpc": "cancel"}, CorrelationId: id},
		{CorrelationId: "1", Headers: amqp.Table{"warren-rpc": int64(7)}}}
	for _, msg := range foreign {
		require.NoError(t, ch.Publish("", to, false, false, msg))
	}
	// One that says where a cancel goes, for a call that nobody has asked to be able to cancel.
	require.NoError(t, ch.Publish("", to, false, false, amqp.Publishing{ReplyTo: to, Headers: amqp.Table{"warren-rpc": "started"}}))
	testenv.Eventually(t, patience, func() bool { return c.Dropped() == int64(len(foreign)) }, "they are counted")
	require.Equal(t, 1, c.Pending())
	close(release)
	require.NoError(t, receive(t, done, "own answer"))
}

// A call's answer is settled already: settling it again does nothing, instead of closing the channel under all others.
func TestReplyCannotBeSettled(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	s.serve(echo, rpc.ServerConfig{})
	c := s.client(rpc.ClientConfig{})
	d, err := c.Call(t.Context(), s.queue, amqp.Publishing{Body: []byte("x")})
	require.NoError(t, err)
	require.Error(t, d.Ack(false))
	require.Error(t, d.Nack(false, true))
	s.answers(c, "y", "y")
}

// What a request carries, as its server sees it, and what an answer carries, as its caller does.
func TestPropertiesAndHeaders(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	seen := make(chan amqp.Delivery, 10)
	s.serve(func(_ context.Context, d amqp.Delivery) (amqp.Publishing, error) {
		seen <- d
		return amqp.Publishing{Body: []byte("answer"), Type: "t", ContentType: "text/x", Headers: amqp.Table{"h": int64(1), "warren-rpc": "error"},
			CorrelationId: "its own"}, nil
	}, rpc.ServerConfig{})
	call := func(c *rpc.Client, timeout time.Duration, req amqp.Publishing) (amqp.Delivery, amqp.Delivery) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		reply, err := c.Call(ctx, s.queue, req)
		require.NoError(t, err)
		return reply, receive(t, seen, "request")
	}
	plain := s.client(rpc.ClientConfig{})
	mine := amqp.Table{"a": "call", "warren-deadline": int64(1), "warren-idempotent": true}
	reply, d := call(plain, 10*time.Second, amqp.Publishing{MessageId: "m-1", Type: "quote", CorrelationId: "c", ReplyTo: "r", Expiration: "1", Headers: mine})
	require.Equal(t, amqp.Table{"h": int64(1)}, reply.Headers, "no error, whatever the handler sends")
	require.Equal(t, []string{"t", "text/x", "answer"}, []string{reply.Type, reply.ContentType, string(reply.Body)})
	require.Equal(t, []string{"m-1", "quote"}, []string{d.MessageId, d.Type})
	require.Equal(t, amqp.Table{"a": "call"}, d.Headers)
	require.EqualValues(t, amqp.Transient, d.DeliveryMode)
	require.Len(t, mine, 3, "the caller's table is as it was")
	ms, err := strconv.Atoi(d.Expiration)
	require.NoError(t, err)
	require.InDelta(t, 10_000, ms, 5000)

	h := amqp.Table{"a": "client", "b": "client"}
	c := plain.WithHeaders(h)
	h["b"] = "changed later"
	_, d = call(c.WithHeaders(amqp.Table{"c": "newer"}).Idempotent(), time.Minute, amqp.Publishing{Headers: amqp.Table{"a": "call"}})
	require.NotEmpty(t, d.MessageId)
	require.Equal(t, "call", d.Headers["a"])
	require.Equal(t, "client", d.Headers["b"])
	require.Equal(t, "newer", d.Headers["c"])
	require.Equal(t, true, d.Headers["warren-idempotent"])
	require.InDelta(t, time.Now().Add(time.Minute).UnixMilli(), d.Headers["warren-deadline"], 10_000)
	require.NotEqual(t, d.MessageId, d.CorrelationId)

	persistent := s.client(rpc.ClientConfig{Persistent: true})
	_, d = call(persistent, time.Second*10, amqp.Publishing{})
	require.EqualValues(t, amqp.Persistent, d.DeliveryMode)
	require.Empty(t, d.Headers)
}

// By exchange and key, and to several queues of it.
func TestExchangeAndKeys(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	exchange := testenv.Name(t, "exchange")
	t.Cleanup(func() { require.NoError(t, s.rawChannel().ExchangeDelete(exchange, false, false)) })
	c := s.client(rpc.ClientConfig{Exchange: exchange})
	call := func(key string) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := c.Call(ctx, key, amqp.Publishing{})
		return err
	}
	var broken *amqp.Error
	began := time.Now()
	err := call("pricing.quote")
	took(t, began, time.Second, "a call to an exchange that is not there")
	require.ErrorIs(t, err, rpc.ErrNoServer)
	require.ErrorAs(t, err, &broken)
	require.Equal(t, amqp.NotFound, broken.Code)
	require.NotErrorIs(t, err, reconnect.ErrUnknown)

	s.serve(echo, rpc.ServerConfig{Exchange: exchange, Keys: []string{"pricing.quote", "pricing.offer"}})
	testenv.Eventually(t, patience, func() bool { return call("pricing.quote") == nil }, "the exchange is asked for again")
	require.NoError(t, call("pricing.offer"))
	var returned *reconnect.ReturnedError
	err = call("pricing.other")
	require.ErrorIs(t, err, rpc.ErrNoServer)
	require.ErrorAs(t, err, &returned)
	require.Equal(t, "pricing.other", returned.Key)

	require.NoError(t, s.rawChannel().ExchangeDelete(exchange, false, false))
	testenv.Eventually(t, patience, func() bool { return errors.Is(call("pricing.quote"), rpc.ErrNoServer) }, "an exchange that is gone")
	require.Zero(t, c.Pending())
}
