package rpc_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/internal/testenv/sight"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/rpc"
)

// seenSetup is a setup whose Conns tell a Sight, and dial through a proxy.
func newSeenSetup(t *testing.T) (*setup, *sight.Sight, *testenv.FaultProxy) {
	seen := sight.New(t)
	s := newSetup(t)
	proxy := testenv.Proxy(t, s.url)
	told := reconnect.Config{TracerProvider: seen.TracerProvider, MeterProvider: seen.MeterProvider, Propagator: seen.Propagator}
	s.serverConn, s.clientConn = s.dial(s.url, told), s.dial(proxy.URL(), told)
	return s, seen, proxy
}

// ended waits for n spans with a name: a server's ends after its answer was sent.
func ended(t *testing.T, seen *sight.Sight, name string, n int) {
	t.Helper()
	testenv.Eventually(t, patience, func() bool { return len(seen.Named(name)) >= n }, "%d spans %s", n, name)
}

// One trace: what the caller does -> the call, to its answer -> the handler -> its answer. Nobody's headers are touched.
func TestOneTraceOfACall(t *testing.T) {
	t.Parallel()
	s, seen, _ := newSeenSetup(t)
	var inside atomic.Value
	s.serve(func(ctx context.Context, d amqp.Delivery) (amqp.Publishing, error) {
		inside.Store(trace.SpanContextFromContext(ctx))
		return amqp.Publishing{Body: d.Body}, nil
	}, rpc.ServerConfig{})
	headers := amqp.Table{"own": "header"}
	ctx, root := seen.Tracer.Start(t.Context(), "root")
	d, err := s.client(rpc.ClientConfig{}).WithHeaders(headers).Call(ctx, s.queue, amqp.Publishing{Headers: amqp.Table{"mine": "too"}, Body: []byte("b")})
	require.NoError(t, err)
	root.End()
	require.Equal(t, amqp.Table{"own": "header"}, headers)
	ended(t, seen, "process "+s.queue, 1)

	call, process, answer := seen.Named("publish "+s.queue), seen.Named("process "+s.queue), seen.Named("publish (temporary)")
	require.Len(t, call, 1)
	require.Len(t, process, 1)
	require.Len(t, answer, 1)
	require.Equal(t, root.SpanContext().SpanID(), call[0].Parent.SpanID())
	require.Equal(t, call[0].SpanContext.SpanID(), process[0].Parent.SpanID())
	require.Equal(t, process[0].SpanContext.SpanID(), answer[0].Parent.SpanID())
	require.Equal(t, process[0].SpanContext, inside.Load())
	require.Equal(t, d.CorrelationId, sight.Attributes(call[0].Attributes)["messaging.message.conversation_id"])
	require.NotContains(t, sight.Attributes(call[0].Attributes), "error.type")
	require.NotContains(t, sight.Attributes(process[0].Attributes), "error.type")
	require.Equal(t, map[string]float64{s.queue: 1, "(temporary)": 1}, seen.Metric("messaging.client.operation.duration", "messaging.destination.name"))
	require.False(t, call[0].EndTime.Before(answer[0].StartTime), "the call ends with the answer")
}

// Each end of a call has a word, and a handler's error shows on its span although the loop has nothing to do about it.
func TestErrorTypesOfCalls(t *testing.T) {
	t.Parallel()
	s, seen, proxy := newSeenSetup(t)
	c := s.client(rpc.ClientConfig{})
	started, release := make(chan struct{}, 1), make(chan struct{})
	_, stop := s.serve(func(ctx context.Context, d amqp.Delivery) (amqp.Publishing, error) {
		switch string(d.Body) {
		case "error":
			return amqp.Publishing{}, errors.New("sold out")
		case "panic":
			panic("on purpose")
		case "hold":
			started <- struct{}{}
			select {
			case <-release:
			case <-ctx.Done():
			}
			return amqp.Publishing{}, ctx.Err()
		}
		return amqp.Publishing{}, nil
	}, rpc.ServerConfig{Concurrency: 3})
	s.answers(c, "plain", "")
	for _, body := range []string{"error", "panic"} {
		_, err := s.call(c, body, patience)
		require.Error(t, err)
	}
	ended(t, seen, "process "+s.queue, 3)
	require.Equal(t, map[string]float64{"": 1, "error": 1, "panic": 1}, seen.Metric("messaging.process.duration", "error.type"))
	require.Equal(t, map[string]float64{"acknowledged": 3}, seen.Metric("messaging.client.consumed.messages", "warren.outcome"))

	_, err := s.call(c, "hold", time.Second)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	receive(t, started, "the call that timed out")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := c.Call(ctx, s.queue, amqp.Publishing{Body: []byte("hold")})
		done <- err
	}()
	receive(t, started, "the call")
	cancel()
	require.ErrorIs(t, receive(t, done, "its end"), context.Canceled)
	go func() {
		_, err := s.call(c, "hold", patience)
		done <- err
	}()
	receive(t, started, "the other call")
	proxy.Cut()
	require.ErrorIs(t, receive(t, done, "its end"), reconnect.ErrUnknown)
	_, err = c.Call(t.Context(), "", amqp.Publishing{})
	require.Error(t, err)
	_, err = c.Call(t.Context(), testenv.Name(t, "nobody"), amqp.Publishing{})
	require.ErrorIs(t, err, rpc.ErrNoServer)
	require.NoError(t, c.Close(t.Context()))
	_, err = s.call(c, "late", patience)
	require.ErrorIs(t, err, reconnect.ErrClosed)

	close(release)
	require.NoError(t, stop())

	words := map[string]int{}
	for _, span := range seen.Spans() {
		if name := sight.Attributes(span.Attributes); span.SpanKind == trace.SpanKindProducer && span.Name != "publish (temporary)" {
			words[name["error.type"]]++
		}
	}
	require.Equal(t, map[string]int{"": 1, "remote": 2, "timeout": 1, "canceled": 1, "unknown": 1, "invalid": 1, "no_server": 1, "closed": 1}, words)
}

// What a resent request's trace says, and that a context which does not fit is left out rather than the call refused.
func TestTraceOfAResentAndOfAFullRequest(t *testing.T) {
	t.Parallel()
	s, seen, proxy := newSeenSetup(t)
	started, release := make(chan struct{}, 10), make(chan struct{})
	s.serve(holding(started, release), rpc.ServerConfig{Concurrency: 2})
	c := s.client(rpc.ClientConfig{})
	done := make(chan error, 1)
	go func() {
		_, err := s.call(c.Idempotent(), "x", patience)
		done <- err
	}()
	receive(t, started, "the first attempt")
	proxy.Cut()
	receive(t, started, "the second one")
	close(release)
	require.NoError(t, receive(t, done, "the answer"))
	ended(t, seen, "process "+s.queue, 2)
	call, process := seen.Named("publish "+s.queue), seen.Named("process "+s.queue)
	require.Len(t, call, 1)
	require.Equal(t, "sent again", call[0].Events[0].Name)
	for _, p := range process {
		require.Equal(t, call[0].SpanContext.SpanID(), p.Parent.SpanID())
	}

	member, err := baggage.NewMemberRaw("big", strings.Repeat("x", 8000))
	require.NoError(t, err)
	bag, err := baggage.New(member)
	require.NoError(t, err)
	ctx := baggage.ContextWithBaggage(t.Context(), bag)
	for i, room := range []int{60_000, 50_000} {
		d, err := c.Call(ctx, s.queue, amqp.Publishing{Headers: amqp.Table{"own": strings.Repeat("y", room)}})
		require.NoError(t, err)
		ended(t, seen, "process "+s.queue, 3+i)
		call, process := seen.Named("publish " + s.queue)[1+i], seen.Named("process " + s.queue)[2+i]
		require.Equal(t, d.CorrelationId, sight.Attributes(process.Attributes)["messaging.message.conversation_id"])
		require.Equal(t, i == 1, call.SpanContext.TraceID() == process.SpanContext.TraceID())
	}
}

// Without a provider and a propagator a call allocates what it did, also within a trace; metrics cost nothing.
func TestCallAllocations(t *testing.T) {
	s := newSetup(t)
	_, err := s.rawChannel().QueueDeclare(s.queue, true, false, false, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeClassic})
	require.NoError(t, err)
	serveElsewhere(t, s.url, s.queue)
	inTrace := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}}))
	allocs := func(ctx context.Context, cfg reconnect.Config) float64 {
		s.clientConn = s.dial(s.url, cfg)
		c := s.client(rpc.ClientConfig{})
		s.answers(c, "x", "x")
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return testing.AllocsPerRun(200, func() {
			if _, err := c.Call(ctx, s.queue, amqp.Publishing{Body: []byte("x")}); err != nil {
				t.Fatal(err)
			}
		})
	}
	seen := sight.New(t)
	plain := allocs(t.Context(), reconnect.Config{})
	unset, metrics := allocs(inTrace, reconnect.Config{}), allocs(t.Context(), reconnect.Config{MeterProvider: seen.MeterProvider})
	traced := allocs(inTrace, reconnect.Config{Propagator: propagation.TraceContext{}})
	t.Logf("a call and its answer %.0f; in a trace that nothing propagates %.0f; with metrics %.0f; with a propagator %.0f", plain, unset, metrics, traced)
	require.InDelta(t, plain, unset, 2)
	require.InDelta(t, plain, metrics, 2)
	require.LessOrEqual(t, traced, plain+20)
}
