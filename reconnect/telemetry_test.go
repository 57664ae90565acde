package reconnect

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/internal/testenv/sight"
)

// seen returns a Config whose telemetry the test sees.
func seen(t *testing.T) (*sight.Sight, Config) {
	s := sight.New(t)
	return s, Config{TracerProvider: s.TracerProvider, MeterProvider: s.MeterProvider, Propagator: s.Propagator}
}

func spanOf(headers amqp.Table) string {
	s, _ := headers["traceparent"].(string)
	if parts := strings.Split(s, "-"); len(parts) == 4 {
		return parts[2]
	}
	return ""
}

// A publish has one span, from the call to the outcome, however often it is sent; what arrives carries it each time.
func TestTraceOfAPublishAcrossALoss(t *testing.T) {
	t.Parallel()
	s, cfg := seen(t)
	broker := testenv.Shared(t)
	proxy := testenv.Proxy(t, broker.URL())
	p := newPubTestAt(t, broker, proxy.URL(), cfg, PublisherConfig{})
	queue := p.queue(nil)
	require.NoError(t, p.publish("", queue, "warm"))
	p.drain(queue)

	headers := amqp.Table{"tenant": "a"}
	ctx, root := s.Tracer.Start(t.Context(), "root")
	proxy.FreezeToClient()
	done := make(chan error, 1)
	go func() {
		msg := plainText("a")
		msg.Headers = headers
		done <- p.p.Publish(ctx, "", queue, msg)
	}()
	testenv.Eventually(t, 5*time.Second, func() bool { return p.broker.Queue(t, queue).Ready == 1 }, "it has arrived")
	proxy.Cut()
	proxy.Heal()
	require.NoError(t, receive(t, done, 20*time.Second, "the outcome"))
	root.End()
	require.Equal(t, amqp.Table{"tenant": "a"}, headers, "the caller's table")

	spans := s.Named("publish " + queue)
	require.Len(t, spans, 2, "with the one before")
	span := spans[1]
	require.Equal(t, root.SpanContext().SpanID(), span.Parent.SpanID())
	require.Equal(t, trace.SpanKindProducer, span.SpanKind)
	require.Equal(t, codes.Unset, span.Status.Code)
	require.Len(t, span.Events, 1)
	require.Equal(t, "1", sight.Attributes(span.Attributes)["warren.sent_again"])
	for _, d := range p.arrived(queue, 2) {
		require.Equal(t, span.SpanContext.SpanID().String(), spanOf(d.Headers))
		require.Equal(t, "a", d.Headers["tenant"])
		require.Equal(t, d.MessageId, sight.Attributes(span.Attributes)["messaging.message.id"])
	}
	require.Equal(t, map[string]float64{"publishing": 1}, s.Metric("warren.connection.reconnects", "warren.link"))
	require.Equal(t, map[string]float64{queue: 2}, s.Metric("messaging.client.sent.messages", "messaging.destination.name"))
}

// Each message of a batch has a span of its own, like those of Publish; the guilty one's says why.
func TestTraceOfABatch(t *testing.T) {
	t.Parallel()
	s, cfg := seen(t)
	broker := testenv.Shared(t)
	p := newPubTestAt(t, broker, broker.URL(), cfg, PublisherConfig{})
	queue := p.queue(nil)
	ctx, root := s.Tracer.Start(t.Context(), "root")
	msgs := make([]Message, 50)
	for i := range msgs {
		msgs[i] = Message{Key: queue, Publishing: plainText("m")}
	}
	msgs[7].Exchange = testenv.Name(t, "missing")
	msgs[9].Expiration = "soon" // bad input: not sent, and no span
	var failed BatchError
	require.ErrorAs(t, p.p.PublishBatch(ctx, msgs), &failed)
	root.End()
	require.Equal(t, 404, amqpCode(failed[7]))
	require.Error(t, failed[9])

	ids := map[string]bool{}
	for _, span := range s.Named("publish " + queue) {
		require.Equal(t, root.SpanContext().SpanID(), span.Parent.SpanID())
		ids[span.SpanContext.SpanID().String()] = true
	}
	require.Len(t, ids, 48)
	for _, d := range p.arrived(queue, 48) {
		require.True(t, ids[spanOf(d.Headers)])
	}
	guilty := s.Named("publish " + msgs[7].Exchange)
	require.Len(t, guilty, 1)
	require.Equal(t, "amqp_404", sight.Attributes(guilty[0].Attributes)["error.type"])
	require.Equal(t, codes.Error, guilty[0].Status.Code)
	require.Equal(t, map[string]float64{"": 48, "amqp_404": 1, "invalid": 1}, s.Metric("messaging.client.operation.duration", "error.type"))
	require.Equal(t, map[string]float64{"": 48}, s.Metric("messaging.client.sent.messages", "error.type"))

	// What never had its turn is counted, too.
	require.Error(t, p.p.PublishBatch(within(t, 0), msgs[:3]))
	require.EqualValues(t, 3, s.Metric("messaging.client.operation.duration", "error.type")["timeout"])
}

// Every outcome has its word, and only what is in doubt or was taken counts as sent.
func TestMetricsOfPublishes(t *testing.T) {
	t.Parallel()
	s, cfg := seen(t)
	broker := testenv.Shared(t)
	proxy := testenv.Proxy(t, broker.URL())
	p := newPubTestAt(t, broker, proxy.URL(), cfg, PublisherConfig{MaxWaiting: 1})
	queue := p.queue(nil)
	full := p.queue(amqp.Table{"x-max-length": int64(1), "x-overflow": "reject-publish"})
	exchange := testenv.Name(t, "missing")
	require.NoError(t, p.publish("", queue, "a"))
	require.Error(t, p.publish("", testenv.Name(t, "nowhere"), "a"))
	require.NoError(t, p.publish("", full, "a"))
	testenv.Eventually(t, 10*time.Second, func() bool { return errors.Is(p.publish("", full, "b"), ErrRefused) }, "it is full")
	require.Equal(t, 404, amqpCode(p.publish(exchange, "k", "a")))
	require.Error(t, p.p.Publish(t.Context(), strings.Repeat("x", 300), "k", plainText("a")))
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, p.p.Publish(canceled, "", queue, plainText("a")), context.Canceled)

	proxy.FreezeToClient()
	waiting := make(chan error, 1)
	held, release := context.WithCancel(t.Context())
	defer release()
	go func() { waiting <- p.p.Publish(held, "", queue, plainText("a")) }()
	testenv.Eventually(t, 10*time.Second, func() bool {
		return s.Metric("warren.publish.unconfirmed", "warren.connection.name")[p.conn.cfg.Name] == 1
	}, "one is in flight")
	require.Equal(t, map[string]float64{p.conn.cfg.Name: 1}, s.Metric("warren.publish.callers", "warren.connection.name"))
	require.ErrorIs(t, p.publish("", queue, "a"), ErrBusy)
	release()
	require.ErrorIs(t, receive(t, waiting, 10*time.Second, "the outcome"), ErrUnknown)
	proxy.Heal()
	testenv.Eventually(t, 5*time.Second, func() bool {
		return s.Metric("warren.publish.unconfirmed", "warren.connection.name")[p.conn.cfg.Name] == 0
	}, "none is in flight")

	require.NoError(t, p.conn.Close(within(t, 10*time.Second)))
	require.ErrorIs(t, p.publish("", queue, "a"), ErrClosed)
	times := s.Metric("messaging.client.operation.duration", "error.type")
	require.GreaterOrEqual(t, times[""], 2.0) // a quorum queue takes a little more than its limit
	require.GreaterOrEqual(t, times["refused"], 1.0)
	delete(times, "")
	delete(times, "refused")
	require.Equal(t, map[string]float64{"returned": 1, "amqp_404": 1, "invalid": 1, "canceled": 1, "busy": 1, "unknown": 1, "closed": 1}, times)
	sent := s.Metric("messaging.client.sent.messages", "error.type")
	delete(sent, "")
	delete(sent, "refused")
	require.Equal(t, map[string]float64{"returned": 1, "unknown": 1}, sent)
	require.Contains(t, s.Metric("messaging.client.operation.duration", "messaging.destination.name"), "(invalid)")
	require.Empty(t, s.Metric("warren.publish.callers", "warren.connection.name"), "a closed Conn is no longer observed")
}

// An alarm is time that is seen while it lasts.
func TestMetricsOfAnAlarm(t *testing.T) {
	s, cfg := seen(t)
	node := testenv.Node(t)
	p := newPubTestAt(t, node.Broker, node.URL(), cfg, PublisherConfig{})
	queue := p.queue(nil)
	require.NoError(t, p.publish("", queue, "before"))
	up := func() float64 { return s.Metric("warren.connection.up", "warren.link")["publishing"] }
	blocked := func() float64 { return s.Metric("warren.connection.blocked", "warren.link")["publishing"] }
	require.EqualValues(t, 1, up())
	require.Zero(t, blocked())
	node.Alarm(true)
	_ = p.p.Publish(within(t, 300*time.Millisecond), "", queue, plainText("first"))
	testenv.Eventually(t, 5*time.Second, func() bool { return up() == 0 && blocked() > 0.2 }, "it shows while it lasts")
	err := p.p.Publish(within(t, 100*time.Millisecond), "", queue, plainText("not sent"))
	require.ErrorIs(t, err, ErrBlocked)
	require.EqualValues(t, 1, s.Metric("messaging.client.operation.duration", "error.type")["blocked"])
	node.Alarm(false)
	testenv.Eventually(t, 10*time.Second, func() bool { return up() == 1 }, "it is over")
	total := blocked()
	require.NoError(t, p.publish("", queue, "after"))
	require.Equal(t, total, blocked(), "it no longer grows")
	require.Zero(t, s.Metric("warren.connection.reconnects", "warren.link")["publishing"])
}

func TestObserveQueues(t *testing.T) {
	t.Parallel()
	s, cfg := seen(t)
	broker := testenv.Shared(t)
	p := newPubTestAt(t, broker, broker.URL(), cfg, PublisherConfig{})
	queue, other := p.queue(nil), p.queue(nil)
	require.NoError(t, p.publish("", queue, "a"))
	depth := func() map[string]float64 { return s.Metric("warren.queue.messages", "messaging.destination.name") }
	require.Empty(t, depth(), "only on request")
	stop, err := p.conn.ObserveQueues(queue, testenv.Name(t, "missing"), other)
	require.NoError(t, err)
	testenv.Eventually(t, 5*time.Second, func() bool { return maps.Equal(depth(), map[string]float64{queue: 1, other: 0}) }, "the depths of those that exist")
	require.Equal(t, map[string]float64{queue: 0, other: 0}, s.Metric("warren.queue.consumers", "messaging.destination.name"))
	stop()
	stop()
	require.Empty(t, depth())

	_, err = p.conn.ObserveQueues("", strings.Repeat("x", 256))
	require.ErrorContains(t, err, "number 0: queue: empty")
	require.ErrorContains(t, err, "number 1: queue: 256 bytes")
	_, err = p.conn.ObserveQueues(queue)
	require.NoError(t, err)
	require.NoError(t, p.conn.Close(within(t, 10*time.Second)))
	require.Empty(t, depth(), "closed")
	_, err = p.conn.ObserveQueues(queue)
	require.ErrorIs(t, err, ErrClosed)
}

// A broker that does not answer holds up a reader of metrics, and a Close meanwhile, only for a while.
func TestObserveQueuesOfAFrozenBroker(t *testing.T) {
	t.Parallel()
	s, cfg := seen(t)
	broker := testenv.Shared(t)
	proxy := testenv.Proxy(t, broker.URL())
	p := newPubTestAt(t, broker, proxy.URL(), cfg, PublisherConfig{})
	queue := p.queue(nil)
	require.NoError(t, p.publish("", queue, "a"))
	_, err := p.conn.ObserveQueues(queue)
	require.NoError(t, err)
	proxy.Freeze()
	began := time.Now()
	collected := make(chan map[string]float64, 1)
	go func() { collected <- s.Metric("warren.queue.messages", "messaging.destination.name") }()
	require.Empty(t, receive(t, collected, 3*lookFor, "the metrics"))
	took(t, began, lookFor, "collecting")
	go func() { collected <- s.Metric("warren.queue.messages", "messaging.destination.name") }()
	began = time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_ = p.conn.Close(ctx) // cut off: the broker is frozen
	took(t, began, 2*time.Second, "closing")
	require.Empty(t, receive(t, collected, 5*time.Second, "the metrics"))
}

// What does not fit beside the caller's headers is left out; the message goes all the same.
func TestTraceIsLeftOutWhereItDoesNotFit(t *testing.T) {
	t.Parallel()
	s, cfg := seen(t)
	broker := testenv.Shared(t)
	p := newPubTestAt(t, broker, broker.URL(), cfg, PublisherConfig{})
	queue := p.queue(nil)
	member, err := baggage.NewMemberRaw("big", strings.Repeat("x", 8000))
	require.NoError(t, err)
	bag, err := baggage.New(member)
	require.NoError(t, err)
	ctx, root := s.Tracer.Start(baggage.ContextWithBaggage(t.Context(), bag), "root")
	defer root.End()
	msg := plainText("a")
	msg.Headers = amqp.Table{"own": strings.Repeat("y", 60_000)}
	require.NoError(t, p.p.Publish(ctx, "", queue, msg))
	msg.Headers = amqp.Table{"own": strings.Repeat("y", 50_000)}
	require.NoError(t, p.p.Publish(ctx, "", queue, msg))
	got := p.arrived(queue, 2)
	assert.NotContains(t, got[0].Headers, "traceparent")
	assert.Len(t, got[0].Headers["own"], 60_000)
	assert.Contains(t, got[1].Headers, "traceparent")
	assert.Contains(t, got[1].Headers, "baggage")
}

// While somebody else's instrument holds up the MeterProvider it lets nobody go: Close goes on, and ends in time.
func TestCloseWhileMetricsHang(t *testing.T) {
	t.Parallel()
	s, cfg := seen(t)
	c, _ := dialed(t, testenv.Shared(t).URL(), cfg)
	inside, goOn := make(chan struct{}), make(chan struct{})
	meter := s.MeterProvider.Meter("other")
	gauge, err := meter.Int64ObservableGauge("hangs")
	require.NoError(t, err)
	var first sync.Once
	_, err = meter.RegisterCallback(func(context.Context, metric.Observer) error {
		first.Do(func() { close(inside) })
		<-goOn
		return nil
	}, gauge)
	require.NoError(t, err)
	collected := make(chan struct{})
	go func() {
		defer close(collected)
		s.Metric("hangs", "")
	}()
	receive(t, inside, 10*time.Second, "collecting")
	closed := make(chan error, 1)
	began := time.Now()
	ctx := within(t, time.Second)
	go func() { closed <- c.Close(ctx) }()
	select {
	case err := <-closed:
		require.ErrorContains(t, err, "MeterProvider")
		took(t, began, 2*time.Second, "Close")
	case <-time.After(20 * time.Second):
		assert.Fail(t, "Close hangs")
	}
	close(goOn)
	<-collected
	testenv.Eventually(t, 10*time.Second, func() bool { return len(s.Metric("warren.connection.up", "warren.link")) == 0 }, "let go of in the end")
}
