package exchange_test

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/internal/testenv/sight"
	"github.com/warrenmq/warren/pubsub"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/routing/consistenthash"
	"github.com/warrenmq/warren/routing/direct"
	"github.com/warrenmq/warren/routing/topic"
	"github.com/warrenmq/warren/workqueue"
)

const patience = 30 * time.Second

// handler is the same type in every package.
type handler = func(ctx context.Context, d amqp.Delivery) error

// subscriber is what all that consume have in common.
type subscriber interface {
	Run(ctx context.Context) error
	Ready() <-chan struct{}
	Pause()
	Resume()
}

// kind is one of them: how to make it, and how a message is sent to it. names are this test's own.
type kind struct {
	name string
	live bool
	make func(conn *reconnect.Conn, exchange, queue string, h handler) (subscriber, error)
	send func(conn *reconnect.Conn, exchange, queue string) (func(context.Context, amqp.Publishing) error, error)
}

var kinds = []kind{
	{"workqueue", false,
		func(conn *reconnect.Conn, _, queue string, h handler) (subscriber, error) {
			return workqueue.NewWorker(conn, workqueue.Queue{Name: queue}, h, workqueue.WorkerConfig{})
		},
		func(conn *reconnect.Conn, _, queue string) (func(context.Context, amqp.Publishing) error, error) {
			p, err := workqueue.NewProducer(conn, workqueue.Queue{Name: queue}, reconnect.PublisherConfig{})
			return p.Publish, err
		}},
	{"pubsub", false,
		func(conn *reconnect.Conn, exchange, queue string, h handler) (subscriber, error) {
			return pubsub.NewSubscriber(conn, pubsub.Subscription{Exchange: pubsub.Exchange{Name: exchange}, Queue: queue}, h, pubsub.SubscriberConfig{})
		}, fanout},
	{"pubsub live", true,
		func(conn *reconnect.Conn, exchange, _ string, h handler) (subscriber, error) {
			return pubsub.NewLiveSubscriber(conn, pubsub.Subscription{Exchange: pubsub.Exchange{Name: exchange}}, h, pubsub.SubscriberConfig{})
		}, fanout},
	{"direct", false,
		func(conn *reconnect.Conn, exchange, queue string, h handler) (subscriber, error) {
			return direct.NewSubscriber(conn, direct.Subscription{Exchange: direct.Exchange{Name: exchange}, Queue: queue, Keys: []string{"a.b"}}, h, direct.SubscriberConfig{})
		}, exactly},
	{"direct live", true,
		func(conn *reconnect.Conn, exchange, _ string, h handler) (subscriber, error) {
			return direct.NewLiveSubscriber(conn, direct.Subscription{Exchange: direct.Exchange{Name: exchange}, Keys: []string{"a.b"}}, h, direct.SubscriberConfig{})
		}, exactly},
	{"topic", false,
		func(conn *reconnect.Conn, exchange, queue string, h handler) (subscriber, error) {
			return topic.NewSubscriber(conn, topic.Subscription{Exchange: topic.Exchange{Name: exchange}, Queue: queue, Patterns: []string{"a.*"}}, h, topic.SubscriberConfig{})
		}, byPattern},
	{"topic live", true,
		func(conn *reconnect.Conn, exchange, _ string, h handler) (subscriber, error) {
			return topic.NewLiveSubscriber(conn, topic.Subscription{Exchange: topic.Exchange{Name: exchange}, Patterns: []string{"a.*"}}, h, topic.SubscriberConfig{})
		}, byPattern},
	{"consistenthash", false,
		func(conn *reconnect.Conn, _, queue string, h handler) (subscriber, error) {
			return consistenthash.NewConsumer(conn, partitions(queue), h, consistenthash.ConsumerConfig{MaxAttempts: 1})
		},
		func(conn *reconnect.Conn, _, queue string) (func(context.Context, amqp.Publishing) error, error) {
			p, err := consistenthash.NewPublisher(conn, partitions(queue), reconnect.PublisherConfig{})
			return func(ctx context.Context, msg amqp.Publishing) error { return p.Publish(ctx, "key", msg) }, err
		}},
}

// partitions are one, in a queue with this name.
func partitions(queue string) consistenthash.Partitions {
	return consistenthash.Partitions{Name: strings.TrimSuffix(queue, ".000"), Count: 1}
}

func fanout(conn *reconnect.Conn, exchange, _ string) (func(context.Context, amqp.Publishing) error, error) {
	p, err := pubsub.NewPublisher(conn, pubsub.Exchange{Name: exchange, Mandatory: true}, reconnect.PublisherConfig{})
	return p.Publish, err
}

func exactly(conn *reconnect.Conn, exchange, _ string) (func(context.Context, amqp.Publishing) error, error) {
	p, err := direct.NewPublisher(conn, direct.Exchange{Name: exchange}, reconnect.PublisherConfig{})
	return func(ctx context.Context, msg amqp.Publishing) error { return p.Publish(ctx, "a.b", msg) }, err
}

func byPattern(conn *reconnect.Conn, exchange, _ string) (func(context.Context, amqp.Publishing) error, error) {
	p, err := topic.NewPublisher(conn, topic.Exchange{Name: exchange}, reconnect.PublisherConfig{})
	return func(ctx context.Context, msg amqp.Publishing) error { return p.Publish(ctx, "a.b", msg) }, err
}

// bench is one subscriber under test.
type bench struct {
	t      *testing.T
	kind   kind
	broker *testenv.Broker
	name   string // of the consuming Conn
	queue  string
	dlq    string
	send   func(context.Context, amqp.Publishing) error
	seen   *sight.Sight // of both Conns
	sub    subscriber
	stop   func() error

	mu    sync.Mutex
	calls []string // ids, in the order of the calls
}

// newBench runs a subscriber whose calls are noted before h decides.
func newBench(t *testing.T, k kind, h func(b *bench, ctx context.Context, d amqp.Delivery) error) *bench {
	t.Helper()
	b := &bench{t: t, kind: k, seen: sight.New(t), broker: testenv.Shared(t), name: testenv.Name(t, "conn"), queue: testenv.Name(t, "q")}
	exchange, dlq := testenv.Name(t, "x"), b.queue+".dlq"
	if k.name == "consistenthash" {
		exchange = b.queue
		b.queue += ".000"
	}
	b.dlq = dlq
	conn := b.dial(b.name)
	sub, err := k.make(conn, exchange, b.queue, func(ctx context.Context, d amqp.Delivery) error {
		b.mu.Lock()
		b.calls = append(b.calls, d.MessageId)
		b.mu.Unlock()
		return h(b, ctx, d)
	})
	require.NoError(t, err)
	b.sub = sub
	b.send, err = k.send(b.dial(testenv.Name(t, "sender")), exchange, b.queue)
	require.NoError(t, err)
	t.Cleanup(func() {
		for _, queue := range []string{b.queue, dlq, exchange + ".partitions"} {
			b.broker.DeleteQueue(t, queue)
		}
		ch, err := b.broker.Dial(t).Channel()
		require.NoError(t, err)
		require.NoError(t, ch.ExchangeDelete(exchange, false, false))
	})
	b.start()
	return b
}

func (b *bench) dial(name string) *reconnect.Conn {
	b.t.Helper()
	conn, err := reconnect.Dial(b.t.Context(), b.broker.URL(), reconnect.Config{Name: name, Logger: testenv.Logger(io.Discard),
		TracerProvider: b.seen.TracerProvider, MeterProvider: b.seen.MeterProvider, Propagator: b.seen.Propagator,
		BackoffMin: 10 * time.Millisecond, BackoffMax: 100 * time.Millisecond})
	require.NoError(b.t, err)
	b.t.Cleanup(func() { require.NoError(b.t, conn.Close(context.Background())) })
	return conn
}

func (b *bench) start() {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.sub.Run(ctx) }()
	b.stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(patience):
			return errors.New("Run did not return")
		}
	})
	b.t.Cleanup(func() { _ = b.stop() })
	select {
	case <-b.sub.Ready():
	case <-time.After(patience):
		require.FailNow(b.t, "not ready in time")
	}
}

func (b *bench) publish(from, to int) {
	b.t.Helper()
	for i := from; i < to; i++ {
		require.NoError(b.t, b.send(b.t.Context(), amqp.Publishing{MessageId: strconv.Itoa(i)}))
	}
}

// of is how often a message was handed to the handler.
func (b *bench) of(id string) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, call := range b.calls {
		if call == id {
			n++
		}
	}
	return n
}

func (b *bench) handled(id string) {
	b.t.Helper()
	testenv.Eventually(b.t, patience, func() bool { return b.of(id) > 0 }, "message %s handled", id)
}

// dead waits until so many messages are in the dead-letter queue, which a live subscription has not.
func (b *bench) dead(n int) {
	b.t.Helper()
	if !b.kind.live {
		testenv.Eventually(b.t, patience, func() bool { return b.broker.Queue(b.t, b.dlq).Ready == n }, "%d messages dead-lettered", n)
	}
}

// notNow is a message's answer that its time has not come.
type notNow struct{}

func (notNow) Error() string             { return "not now" }
func (notNow) NotNow() bool              { return true }
func (notNow) RetryAfter() time.Duration { return 20 * time.Millisecond }

// TestConformance: whatever consumes behaves alike.
func TestConformance(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			t.Run("ready, and back after a cut", func(t *testing.T) { readyAndBack(t, k) })
			t.Run("failure, panic, not now", func(t *testing.T) { failing(t, k) })
			t.Run("drain", func(t *testing.T) { draining(t, k) })
			t.Run("pause", func(t *testing.T) { pausing(t, k) })
			t.Run("trace", func(t *testing.T) { tracing(t, k) })
		})
	}
}

func readyAndBack(t *testing.T, k kind) {
	b := newBench(t, k, func(*bench, context.Context, amqp.Delivery) error { return nil })
	b.publish(0, 1) // mandatory: there is a queue
	b.handled("0")
	for i := 1; i < 4; i++ {
		b.broker.CutConnections(t, b.name)
		testenv.Eventually(t, patience, func() bool { return b.send(t.Context(), amqp.Publishing{MessageId: strconv.Itoa(i)}) == nil }, "taken by a queue")
		b.handled(strconv.Itoa(i))
	}
	require.NoError(t, b.stop())
}

// tracing: the handler runs in the trace of the publish, with its baggage, whichever connection the message came over.
func tracing(t *testing.T, k kind) {
	var mu sync.Mutex
	tenants, spans := map[string]string{}, map[string]trace.SpanContext{}
	b := newBench(t, k, func(_ *bench, ctx context.Context, d amqp.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		tenants[d.MessageId], spans[d.MessageId] = baggage.FromContext(ctx).Member("tenant").Value(), trace.SpanContextFromContext(ctx)
		return nil
	})
	member, err := baggage.NewMember("tenant", "a")
	require.NoError(t, err)
	bag, err := baggage.New(member)
	require.NoError(t, err)
	ctx, root := b.seen.Tracer.Start(baggage.ContextWithBaggage(t.Context(), bag), "root")
	for i, id := range []string{"0", "1"} {
		if i > 0 {
			b.broker.CutConnections(t, b.name)
		}
		headers := amqp.Table{"own": "x"}
		testenv.Eventually(t, patience, func() bool { return b.send(ctx, amqp.Publishing{MessageId: id, Headers: headers}) == nil }, "taken by a queue")
		b.handled(id)
		require.Equal(t, amqp.Table{"own": "x"}, headers)
	}
	root.End()
	require.NoError(t, b.stop())
	mu.Lock()
	defer mu.Unlock()
	published := map[string]tracetest.SpanStub{} // by span
	for _, span := range b.seen.Spans() {
		require.Equal(t, root.SpanContext().TraceID(), span.SpanContext.TraceID(), span.Name)
		if span.SpanKind == trace.SpanKindProducer {
			published[span.SpanContext.SpanID().String()] = span
			require.Equal(t, root.SpanContext().SpanID(), span.Parent.SpanID())
		}
	}
	for _, span := range b.seen.Spans() {
		if span.SpanKind != trace.SpanKindConsumer {
			continue
		}
		id := sight.Attributes(span.Attributes)["messaging.message.id"]
		require.Equal(t, id, sight.Attributes(published[span.Parent.SpanID().String()].Attributes)["messaging.message.id"])
		if spans[id].SpanID() == span.SpanContext.SpanID() {
			delete(spans, id)
		}
	}
	require.Empty(t, spans, "each handler's context had a span of a message")
	require.Equal(t, map[string]string{"0": "a", "1": "a"}, tenants)
	settled := b.seen.Metric("messaging.client.consumed.messages", "warren.outcome")
	require.GreaterOrEqual(t, settled["acknowledged"], 2.0)
}

func failing(t *testing.T, k kind) {
	b := newBench(t, k, func(b *bench, _ context.Context, d amqp.Delivery) error {
		if err := d.Ack(false); err == nil {
			b.t.Error("a handler settled by hand")
		}
		switch d.MessageId {
		case "1":
			return errors.New("no")
		case "2":
			panic("no")
		case "3":
			if b.of("3") < 4 {
				return notNow{}
			}
		}
		return nil
	})
	b.publish(0, 5)
	b.handled("4")
	b.dead(2)
	require.NoError(t, b.stop())
	for id, n := range map[string]int{"0": 1, "1": 1, "2": 1, "3": 4, "4": 1} {
		require.Equal(t, n, b.of(id), "calls for message %s", id)
	}
}

func draining(t *testing.T, k kind) {
	begun, release := make(chan struct{}), make(chan struct{})
	b := newBench(t, k, func(_ *bench, ctx context.Context, d amqp.Delivery) error {
		if d.MessageId == "0" {
			close(begun)
			<-release
			return ctx.Err() // lives on, though Run's context has ended
		}
		return nil
	})
	b.publish(0, 3)
	<-begun
	stopped := make(chan error, 1)
	go func() { stopped <- b.stop() }()
	select {
	case <-stopped:
		require.Fail(t, "Run returned before its handler")
	case <-time.After(100 * time.Millisecond):
	}
	close(release)
	require.NoError(t, <-stopped)
	require.Equal(t, 1, b.of("0"))
	require.Zero(t, b.of("1"), "started after the end")
	if k.live {
		return // its queue is gone
	}
	testenv.Eventually(t, patience, func() bool { return b.broker.Queue(t, b.queue).Ready == 2 }, "the others are back")
	b.start()
	b.handled("2")
	require.Equal(t, 1, b.of("0"), "what was finished came again")
	require.NoError(t, b.stop())
}

func pausing(t *testing.T, k kind) {
	b := newBench(t, k, func(*bench, context.Context, amqp.Delivery) error { return nil })
	b.sub.Pause()
	if !k.live {
		testenv.Eventually(t, patience, func() bool { return b.broker.Queue(t, b.queue).Consumers == 0 }, "paused")
	} else {
		testenv.Eventually(t, patience, func() bool {
			for _, ch := range b.broker.Channels(t, b.name+"/consuming") {
				if ch.Consumers > 0 {
					return false
				}
			}
			return true
		}, "paused")
	}
	b.publish(0, 3)
	require.Zero(t, b.of("0"))
	b.sub.Resume()
	b.handled("2")
	require.NoError(t, b.stop())
}
