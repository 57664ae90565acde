package workqueue_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/internal/testenv/sight"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

func newSeenSetup(t *testing.T, broker *testenv.Broker, url string, q workqueue.Queue) (*setup, *sight.Sight) {
	seen := sight.New(t)
	return newSetupWith(t, broker, url, q, reconnect.Config{
		TracerProvider: seen.TracerProvider, MeterProvider: seen.MeterProvider, Propagator: seen.Propagator}), seen
}

// One trace from the request to the handler, though the publish has to wait for a link and to be sent twice, and the handler's
// channel is lost in the middle of it: request -> publish -> process, process again.
func TestOneTraceAcrossAReconnect(t *testing.T) {
	t.Parallel()
	broker := testenv.Shared(t)
	proxy := testenv.Proxy(t, broker.URL())
	s, seen := newSeenSetup(t, broker, proxy.URL(), workqueue.Queue{})
	producer := s.producer(reconnect.PublisherConfig{})
	require.NoError(t, producer.Publish(t.Context(), amqp.Publishing{MessageId: "warm"}))
	s.take(s.queue.Name, 1)

	ctx, root := seen.Tracer.Start(t.Context(), "request")
	proxy.FreezeToClient()
	published := make(chan error, 1)
	go func() { published <- producer.Publish(ctx, amqp.Publishing{MessageId: "m"}) }()
	testenv.Eventually(t, patience, func() bool { return s.depth(s.queue.Name) == 1 }, "it has arrived, unknown to the producer")
	proxy.Cut()
	proxy.Heal()
	require.NoError(t, receive(t, published, "the outcome"))
	testenv.Eventually(t, patience, func() bool { return s.depth(s.queue.Name) == 2 }, "sent twice")
	s.take(s.queue.Name, 1) // one of the two, which are alike

	var mu sync.Mutex
	var inside []trace.SpanContext
	first, cut := make(chan struct{}), make(chan struct{})
	stop := s.start(s.conn, func(ctx context.Context, _ amqp.Delivery) error {
		mu.Lock()
		inside = append(inside, trace.SpanContextFromContext(ctx))
		calls := len(inside)
		mu.Unlock()
		if calls == 1 {
			close(first)
			<-ctx.Done() // its channel is lost
			close(cut)
			return ctx.Err()
		}
		return nil
	}, workqueue.WorkerConfig{})
	receive(t, first, "the handler's call")
	proxy.Cut()
	receive(t, cut, "the end of its context")
	s.settled()
	require.NoError(t, stop())
	root.End()

	publishes := seen.Named("publish " + s.queue.Name)
	require.Len(t, publishes, 2)
	publish := publishes[1]
	require.Equal(t, root.SpanContext().SpanID(), publish.Parent.SpanID())
	require.Equal(t, "sent again", publish.Events[0].Name)
	calls := seen.Named("process " + s.queue.Name)
	require.Len(t, calls, 2)
	for i, call := range calls {
		require.Equal(t, publish.SpanContext.SpanID(), call.Parent.SpanID())
		require.Equal(t, root.SpanContext().TraceID(), call.SpanContext.TraceID())
		require.Equal(t, call.SpanContext.SpanID(), inside[i].SpanID())
		require.Equal(t, i == 1, sight.Attributes(call.Attributes)["warren.redelivered"] == "true")
	}
	require.Equal(t, map[string]float64{"acknowledged": 1, "stale": 1}, seen.Metric("messaging.client.consumed.messages", "warren.outcome"))
	require.Equal(t, map[string]float64{"": 1, "error": 1}, seen.Metric("messaging.process.duration", "error.type"))
	require.GreaterOrEqual(t, seen.Metric("warren.connection.reconnects", "warren.link")["consuming"], 1.0)
}

// Each way a handler can end has its word, in its span and in the metrics.
func TestTelemetryOfOutcomes(t *testing.T) {
	t.Parallel()
	broker := testenv.Shared(t)
	s, seen := newSeenSetup(t, broker, broker.URL(), workqueue.Queue{})
	s.publish(6)
	var tries int
	stop := s.start(s.conn, func(ctx context.Context, d amqp.Delivery) error {
		switch d.MessageId {
		case "1":
			return errors.New("no")
		case "2":
			panic("no")
		case "3":
			if tries++; tries < 3 {
				return gone{100 * time.Millisecond}
			}
		case "4":
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}, workqueue.WorkerConfig{HandlerTimeout: 500 * time.Millisecond})
	s.settled()
	require.NoError(t, stop())

	require.Equal(t, map[string]float64{"": 3, "error": 1, "panic": 1, "not_now": 2, "timeout": 1},
		seen.Metric("messaging.process.duration", "error.type"))
	require.Equal(t, map[string]float64{"acknowledged": 3, "dead_lettered": 3}, seen.Metric("messaging.client.consumed.messages", "warren.outcome"))
	waited := seen.Metric("warren.consumer.not_now", "messaging.destination.name")[s.queue.Name]
	require.GreaterOrEqual(t, waited, 0.2)
	words := map[string][]string{}
	for _, span := range seen.Named("process " + s.queue.Name) {
		attrs := sight.Attributes(span.Attributes)
		id := attrs["messaging.message.id"]
		words[id] = append(words[id], attrs["error.type"])
		require.Equal(t, attrs["error.type"] != "", span.Status.Code == codes.Error)
	}
	require.Equal(t, map[string][]string{"0": {""}, "1": {"error"}, "2": {"panic"}, "3": {"not_now", "not_now", ""}, "4": {"timeout"}, "5": {""}}, words)
}

type gone struct{ after time.Duration }

func (gone) Error() string               { return "the database is away" }
func (gone) NotNow() bool                { return true }
func (g gone) RetryAfter() time.Duration { return g.after }

// A batch is one call in a trace of its own, with links to what it holds.
func TestTraceOfABatchHandler(t *testing.T) {
	t.Parallel()
	broker := testenv.Shared(t)
	s, seen := newSeenSetup(t, broker, broker.URL(), workqueue.Queue{})
	s.publish(3)
	w, err := workqueue.NewBatchWorker(s.conn, s.queue, func(ctx context.Context, ds []amqp.Delivery) error {
		if !trace.SpanContextFromContext(ctx).IsValid() {
			t.Error("no span in the handler's context")
		}
		failed := make(reconnect.BatchError, len(ds))
		for i, d := range ds {
			if d.MessageId == "1" {
				failed[i] = errors.New("no")
			}
		}
		return failed
	}, workqueue.WorkerConfig{BatchSize: 3, BatchWait: time.Second})
	require.NoError(t, err)
	stop := run(t, w)
	s.settled()
	require.NoError(t, stop())

	published := map[trace.SpanID]string{}
	for _, span := range seen.Named("publish " + s.queue.Name) {
		published[span.SpanContext.SpanID()] = sight.Attributes(span.Attributes)["messaging.message.id"]
	}
	linked := map[string]bool{}
	for _, span := range seen.Named("process " + s.queue.Name) {
		require.False(t, span.Parent.IsValid())
		require.Equal(t, strconv.Itoa(len(span.Links)), sight.Attributes(span.Attributes)["messaging.batch.message_count"])
		for _, link := range span.Links {
			linked[published[link.SpanContext.SpanID()]] = true
		}
	}
	require.Equal(t, map[string]bool{"0": true, "1": true, "2": true}, linked)
	require.Equal(t, map[string]float64{"acknowledged": 2, "dead_lettered": 1}, seen.Metric("messaging.client.consumed.messages", "warren.outcome"))
}

// The copy of a failure on a classic queue goes on in the message's trace, and the copy's publish is part of the call.
func TestTraceOfADeadLetterCopy(t *testing.T) {
	t.Parallel()
	broker := testenv.Shared(t)
	s, seen := newSeenSetup(t, broker, broker.URL(), workqueue.Queue{Classic: true})
	ctx, root := seen.Tracer.Start(t.Context(), "request")
	require.NoError(t, s.producer(reconnect.PublisherConfig{}).Publish(ctx, amqp.Publishing{MessageId: "m"}))
	stop := s.start(s.conn, func(context.Context, amqp.Delivery) error { return errors.New("no") }, workqueue.WorkerConfig{})
	s.settled()
	dead := s.take(s.queue.DeadLetterQueue(), 1)[0]
	require.NoError(t, stop())
	root.End()
	publish, call := seen.Named("publish " + s.queue.Name)[0], seen.Named("process " + s.queue.Name)[0]
	copied := seen.Named("publish " + s.queue.DeadLetterQueue())[0]
	require.Contains(t, dead.Headers["traceparent"], publish.SpanContext.SpanID().String())
	require.Equal(t, call.SpanContext.SpanID(), copied.Parent.SpanID())
	require.Equal(t, publish.SpanContext.SpanID(), copied.Links[0].SpanContext.SpanID())
	require.Equal(t, root.SpanContext().TraceID(), copied.SpanContext.TraceID())
}

// A sampler that drops does not cut the trace: the context goes on, unsampled.
func TestTraceThatIsNotSampled(t *testing.T) {
	t.Parallel()
	exporter := tracetest.NewInMemoryExporter()
	tp := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter), sdktrace.WithSampler(sdktrace.NeverSample()))
	defer func() { require.NoError(t, tp.Shutdown(context.Background())) }()
	broker, seen := testenv.Shared(t), sight.New(t)
	s := newSetupWith(t, broker, broker.URL(), workqueue.Queue{}, reconnect.Config{TracerProvider: tp, Propagator: seen.Propagator})
	ctx, root := tp.Tracer("test").Start(t.Context(), "request")
	defer root.End()
	require.NoError(t, s.producer(reconnect.PublisherConfig{}).Publish(ctx, amqp.Publishing{}))
	got := make(chan trace.SpanContext, 1)
	stop := s.start(s.conn, func(ctx context.Context, _ amqp.Delivery) error {
		got <- trace.SpanContextFromContext(ctx)
		return nil
	}, workqueue.WorkerConfig{})
	sc := receive(t, got, "the handler's call")
	require.NoError(t, stop())
	require.Equal(t, root.SpanContext().TraceID(), sc.TraceID())
	require.False(t, sc.IsSampled())
	require.Empty(t, exporter.GetSpans())
}
