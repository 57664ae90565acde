package rpc_test

import (
	"context"
	"errors"
	"math"
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

// P40: a backlog of requests that nobody waits for any more is not worked through.
func TestP40BacklogAfterAnOutage(t *testing.T) {
	t.Parallel()
	const calls = 50
	s := newSetup(t)
	s.declare(rpc.ServerConfig{})
	c := s.client(rpc.ClientConfig{})
	var wg sync.WaitGroup
	for range calls {
		wg.Go(func() {
			_, err := s.call(c, "x", 200*time.Millisecond)
			require.ErrorIs(t, err, context.DeadlineExceeded)
		})
	}
	wg.Wait()
	// The broker counts from a request's arrival, which on a busy machine is a moment after its caller has begun to wait. What one channel
	// was sent comes in order: when it says that nobody serves another queue, all requests have arrived.
	nobody, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := c.Call(nobody, testenv.Name(t, "nobody"), amqp.Publishing{})
	require.ErrorIs(t, err, rpc.ErrNoServer)
	testenv.Eventually(t, patience, func() bool { return s.broker.Queue(t, s.queue).Ready == 0 }, "their time is over at the broker, too")
	var runs atomic.Int64
	s.serve(func(ctx context.Context, d amqp.Delivery) (amqp.Publishing, error) {
		runs.Add(1)
		return echo(ctx, d)
	}, rpc.ServerConfig{})
	s.answers(c, "live", "live")
	require.EqualValues(t, 1, runs.Load())
	require.Zero(t, c.Pending())
}

// P40: nor are requests executed that have waited for too long in a server's own prefetch.
func TestP40WaitingInThePrefetch(t *testing.T) {
	t.Parallel()
	const calls = 5
	s := newSetup(t)
	started, release := make(chan struct{}, 100), make(chan struct{})
	var runs atomic.Int64
	h := holding(started, release)
	server, _ := s.serve(func(ctx context.Context, d amqp.Delivery) (amqp.Publishing, error) {
		runs.Add(1)
		return h(ctx, d)
	}, rpc.ServerConfig{Prefetch: 10})
	c := s.client(rpc.ClientConfig{})
	first := make(chan error, 1)
	go func() { _, err := s.call(c, "first", patience); first <- err }()
	receive(t, started, "handler")
	// Not of a client that waits for them: that would end a moment before the server's time does, which counts from the arrival there.
	const left, arriving = 500 * time.Millisecond, time.Second
	raw := s.rawClient()
	for range calls {
		raw.send(amqp.Publishing{Expiration: strconv.FormatInt(left.Milliseconds(), 10)})
	}
	testenv.Eventually(t, patience, func() bool { return s.broker.Queue(t, s.queue).Unacked == 1+calls }, "all are with the server")
	<-time.After(arriving + left) // their time is over
	close(release)
	require.NoError(t, receive(t, first, "answer"))
	testenv.Eventually(t, patience, func() bool { return server.Expired() == calls }, "they are counted")
	require.EqualValues(t, 1, runs.Load())
}

// P40: the smallest deadline is one; it reaches neither the broker nor the server as something malformed.
func TestP40TinyAndHugeDeadlines(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	limits := make(chan time.Duration, 1000)
	s.serve(func(ctx context.Context, d amqp.Delivery) (amqp.Publishing, error) {
		deadline, ok := ctx.Deadline()
		if !ok {
			return amqp.Publishing{}, errors.New("no deadline")
		}
		if len(d.Body) == 0 {
			limits <- time.Until(deadline)
		}
		return echo(ctx, d)
	}, rpc.ServerConfig{MaxDeadline: time.Minute})
	c := s.client(rpc.ClientConfig{})
	s.answers(c, "x", "x")
	for _, within := range []time.Duration{1, time.Microsecond, 500 * time.Microsecond, time.Millisecond, 1500 * time.Microsecond, 3 * time.Millisecond} {
		_, err := s.call(c, "x", within)
		if err != nil {
			require.ErrorIs(t, err, context.DeadlineExceeded, "%v", within)
		}
	}
	s.answers(c, "alive", "alive")
	for _, deadline := range []time.Time{time.Now().Add(math.MaxInt64), time.Unix(1<<40, 0), time.Now().Add(90 * time.Second)} {
		ctx, cancel := context.WithDeadline(t.Context(), deadline)
		_, err := c.Call(ctx, s.queue, amqp.Publishing{})
		cancel()
		require.NoError(t, err)
		limit := receive(t, limits, "handler")
		require.LessOrEqual(t, limit, time.Minute, "the server's own bound")
		require.Greater(t, limit, 45*time.Second)
	}
	require.Len(t, s.broker.Channels(t, s.clientName), 2)
}

// A call without a deadline gets the client's; the handler's context ends with it.
func TestDefaultTimeout(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	ended := make(chan error, 1)
	s.serve(func(ctx context.Context, d amqp.Delivery) (amqp.Publishing, error) {
		if len(d.Body) > 0 {
			return echo(ctx, d)
		}
		<-ctx.Done()
		ended <- ctx.Err()
		return amqp.Publishing{}, ctx.Err()
	}, rpc.ServerConfig{})
	const timeout = 300 * time.Millisecond
	c := s.client(rpc.ClientConfig{Timeout: timeout})
	s.open(c) // or its time might be over before it is sent
	began := time.Now()
	_, err := c.Call(context.Background(), s.queue, amqp.Publishing{})
	require.GreaterOrEqual(t, time.Since(began), timeout)
	took(t, began, timeout, "the call")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, reconnect.ErrUnknown)
	require.ErrorContains(t, err, "Timeout")
	require.ErrorIs(t, receive(t, ended, "the handler's end"), context.DeadlineExceeded)
	require.Zero(t, c.Pending())
}

// Deadlines that a request claims for itself: they shorten its time, never lengthen it beyond the server's own bound.
func TestForgedDeadlines(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	limits := make(chan time.Duration, 10)
	server, _ := s.serve(func(ctx context.Context, d amqp.Delivery) (amqp.Publishing, error) {
		deadline, _ := ctx.Deadline()
		limits <- time.Until(deadline)
		return echo(ctx, d)
	}, rpc.ServerConfig{MaxDeadline: 10 * time.Minute})
	raw := s.rawClient()
	now := time.Now()
	for name, tt := range map[string]struct {
		expiration string
		header     any
		want       time.Duration
	}{
		"none":                      {"", nil, 10 * time.Minute},
		"remaining":                 {"60000", nil, time.Minute},
		"remaining, with zeros":     {"0000060000", nil, time.Minute},
		"10 years":                  {"315360000000", nil, 10 * time.Minute},
		"absolute":                  {"", now.Add(2 * time.Minute).UnixMilli(), 2*time.Minute + 30*time.Second},
		"absolute, far":             {"60000", int64(math.MaxInt64), time.Minute},
		"absolute, of another kind": {"", int32(5), 10 * time.Minute},
		"absolute, as text":         {"", "soon", 10 * time.Minute},
		"absolute, nested":          {"", amqp.Table{"a": []any{int64(1)}}, 10 * time.Minute},
		"clock behind":              {"60000", now.Add(-20 * time.Second).UnixMilli(), 10 * time.Second},
	} {
		msg := amqp.Publishing{Expiration: tt.expiration, CorrelationId: name}
		if tt.header != nil {
			msg.Headers = amqp.Table{"warren-deadline": tt.header}
		}
		raw.send(msg)
		require.InDelta(t, tt.want.Seconds(), receive(t, limits, name).Seconds(), 8, name)
		require.Equal(t, name, receive(t, raw.replies, name).CorrelationId)
	}
	over := []int64{math.MinInt64, -1, 0, now.Add(-time.Hour).UnixMilli(), now.Add(-31 * time.Second).UnixMilli()}
	for _, at := range over {
		raw.send(amqp.Publishing{Headers: amqp.Table{"warren-deadline": at}})
	}
	testenv.Eventually(t, patience, func() bool { return server.Expired() == int64(len(over)) }, "those that are over are dropped")
	require.Empty(t, limits)
}

// What else a request may carry harms nobody.
func TestHostileRequests(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	s.serve(rpc.JSON(func(_ context.Context, q quote) (quote, error) { return q, nil }), rpc.ServerConfig{})
	raw := s.rawClient()
	deep := amqp.Table{}
	for range 15 {
		deep = amqp.Table{"d": deep}
	}
	for i, msg := range []amqp.Publishing{
		{Body: nil}, {Body: []byte("null")}, {Body: []byte("\x00")}, {Headers: deep},
		{Headers: amqp.Table{"warren-rpc": "error"}}, {Headers: amqp.Table{"warren-rpc": "cancel"}}, {Headers: amqp.Table{"warren-rpc": "started"}},
		{Headers: amqp.Table{"warren-rpc": int64(5)}}, {Headers: amqp.Table{"x-death": []any{amqp.Table{}}, "CC": []any{"nobody"}}},
		{MessageId: "\x00\xff\x1b[31m"}, {Type: string(make([]byte, 255))}, {Priority: 255}, {ContentEncoding: "gzip"},
		{Headers: amqp.Table{"warren-rpc": "cancellable"}},
	} {
		msg.CorrelationId = strconv.Itoa(i) + "\x00\xff"
		raw.send(msg)
		var reply amqp.Delivery
		for reply = receive(t, raw.replies, "reply"); reply.Headers["warren-rpc"] == "started"; {
			reply = receive(t, raw.replies, "reply")
		}
		require.Equal(t, msg.CorrelationId, reply.CorrelationId)
		require.Equal(t, "bad-request", code(t, reply), "%d", i)
	}
	raw.send(amqp.Publishing{Body: []byte(`{"SKU":"x"}`)}) // no correlation id at all
	require.JSONEq(t, `{"SKU":"x"}`, string(receive(t, raw.replies, "reply").Body))
	require.Len(t, s.links(s.serverName), 2)
}

// A request above MaxBody is answered without being decoded.
func TestRequestAboveMaxBody(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	small := s.dial(s.url, reconnect.Config{Name: s.name + "-small", MaxBody: 1000})
	s.serveOn(small, echo, rpc.ServerConfig{})
	c := s.client(rpc.ClientConfig{})
	d, err := c.Call(t.Context(), s.queue, amqp.Publishing{Body: make([]byte, 1000)})
	require.NoError(t, err)
	require.Len(t, d.Body, 1000)
	_, err = c.Call(t.Context(), s.queue, amqp.Publishing{Body: make([]byte, 1001)})
	var remote *rpc.RemoteError
	require.ErrorAs(t, err, &remote)
	require.Equal(t, "bad-request", remote.Code)
}

// notNow is a handler's "not now".
type notNow struct{ after time.Duration }

func (notNow) Error() string               { return "not now" }
func (notNow) NotNow() bool                { return true }
func (n notNow) RetryAfter() time.Duration { return n.after }

// "Not now" keeps the request and calls the handler again, while somebody waits for it.
func TestNotNow(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	var runs atomic.Int64
	server, _ := s.serve(func(ctx context.Context, d amqp.Delivery) (amqp.Publishing, error) {
		if n := runs.Add(1); n <= 2 || string(d.Body) == "never" {
			return amqp.Publishing{}, notNow{time.Duration(n) * 20 * time.Millisecond}
		}
		return echo(ctx, d)
	}, rpc.ServerConfig{})
	c := s.client(rpc.ClientConfig{})
	s.answers(c, "third time", "third time")
	require.EqualValues(t, 3, runs.Load())
	testenv.Eventually(t, patience, func() bool { // one whose time is over before it comes to the server is none
		_, err := s.call(c, "never", 300*time.Millisecond)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		return server.Expired() > 0
	}, "it is given up when nobody waits any more")
	s.answers(c, "next", "next")
}
