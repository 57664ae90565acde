package telemetry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/codes"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/warrenmq/warren/internal/testenv/sight"
)

// lab is a T whose tales are kept in memory.
type lab struct {
	*T
	*sight.Sight
}

var all = propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})

func newLab(tb testing.TB) *lab {
	s := sight.New(tb)
	return &lab{New(Config{TracerProvider: s.TracerProvider, MeterProvider: s.MeterProvider, Propagator: s.Propagator}), s}
}

// metric returns the sums of a metric, for a histogram the counts, by the named attribute's value.
func (l *lab) metric(name string, by attribute.Key) map[string]float64 {
	return l.Metric(name, string(by))
}

func attributes(kvs []attribute.KeyValue) map[string]string { return sight.Attributes(kvs) }

func TestPublishTellsByTheConventions(t *testing.T) {
	l := newLab(t)
	ctx, root := l.Tracer.Start(t.Context(), "root")
	msg := amqp.Publishing{MessageId: "m-1", CorrelationId: "c-1", Body: []byte("12345")}
	p := l.Publish(ctx, "orders", "order.created", msg.Headers)
	require.True(t, p.Inject(&msg))
	p.Describe(&msg)
	p.Again(errors.New("connection lost"))
	require.True(t, p.Told())
	header := msg.Headers["traceparent"]
	p.End("returned", errors.New("no queue took it"), true)
	root.End()

	span := l.Spans()[0]
	require.Equal(t, "publish orders", span.Name)
	require.Equal(t, trace.SpanKindProducer, span.SpanKind)
	require.Equal(t, root.SpanContext().SpanID(), span.Parent.SpanID())
	require.Equal(t, fmt.Sprintf("00-%s-%s-01", span.SpanContext.TraceID(), span.SpanContext.SpanID()), header)
	require.Equal(t, map[string]string{
		"messaging.system": "rabbitmq", "messaging.operation.name": "publish", "messaging.operation.type": "send",
		"messaging.destination.name": "orders", "messaging.rabbitmq.destination.routing_key": "order.created",
		"messaging.message.id": "m-1", "messaging.message.conversation_id": "c-1", "messaging.message.body.size": "5",
		"error.type": "returned", "warren.sent_again": "1",
	}, attributes(span.Attributes))
	require.Equal(t, sdktrace.Status{Code: codes.Error, Description: "no queue took it"}, span.Status)
	require.Equal(t, "sent again", span.Events[0].Name)
	require.Equal(t, map[string]float64{"returned": 1}, l.metric(metricOperation, keyErrorType))
	require.Equal(t, map[string]float64{"returned": 1}, l.metric(metricSent, keyErrorType))
	l.Unsent(ctx, "orders", "order.created", "canceled", time.Now())
	require.Equal(t, map[string]float64{"orders": 2}, l.metric(metricOperation, keyDestination))
	require.Equal(t, map[string]float64{"orders": 1}, l.metric(metricSent, keyDestination))
}

// The caller's table is never touched, whatever it holds.
func TestInjectLeavesTheCallersTable(t *testing.T) {
	l := newLab(t)
	headers := amqp.Table{"tenant": "a", "attempt": int64(3)}
	before := maps.Clone(headers)
	msg := amqp.Publishing{Headers: headers}
	p := l.Publish(t.Context(), "orders", "k", msg.Headers)
	require.True(t, p.Inject(&msg))
	require.Equal(t, "a", msg.Headers["tenant"])
	require.Contains(t, msg.Headers, "traceparent")
	require.Equal(t, before, headers)
	p.End("", nil, true)
	require.Equal(t, before, headers)
}

// What a message carries goes on: a copy of it stays in the trace of the original.
func TestACarriedContextIsKept(t *testing.T) {
	const carried = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, traced := range []bool{false, true} {
		l := newLab(t)
		ctx := t.Context()
		if traced {
			var root trace.Span
			ctx, root = l.Tracer.Start(ctx, "root")
			defer root.End()
		}
		msg := amqp.Publishing{Headers: amqp.Table{"traceparent": carried}}
		p := l.Publish(ctx, "", "orders", msg.Headers)
		require.False(t, p.Inject(&msg))
		require.Equal(t, amqp.Table{"traceparent": carried}, msg.Headers)
		p.End("", nil, true)
		span := l.Spans()[0]
		if traced {
			require.NotEqual(t, "0af7651916cd43dd8448eb211c80319c", span.SpanContext.TraceID().String())
			require.Equal(t, "b7ad6b7169203331", span.Links[0].SpanContext.SpanID().String())
		} else {
			require.Equal(t, "b7ad6b7169203331", span.Parent.SpanID().String())
			require.Empty(t, span.Links)
		}
	}
}

func TestProcessTellsByTheConventions(t *testing.T) {
	l := newLab(t)
	run, outer := l.Tracer.Start(t.Context(), "the worker's run")
	c := l.Consumer("orders.work")
	d := amqp.Delivery{MessageId: "m-1", CorrelationId: "c-1", RoutingKey: "order.created", DeliveryTag: 7, Redelivered: true, Body: []byte("123"),
		Headers: amqp.Table{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "baggage": "tenant=a"}}
	ctx, p := c.Process(run, &d)
	require.Equal(t, "a", baggage.FromContext(ctx).Member("tenant").Value())
	require.Equal(t, "0af7651916cd43dd8448eb211c80319c", trace.SpanContextFromContext(ctx).TraceID().String())
	p.Returned("error")
	p.End("error", errors.New("no"))
	span := l.Spans()[0]
	require.Equal(t, "process orders.work", span.Name)
	require.Equal(t, trace.SpanKindConsumer, span.SpanKind)
	require.Equal(t, "b7ad6b7169203331", span.Parent.SpanID().String())
	require.Equal(t, map[string]string{
		"messaging.system": "rabbitmq", "messaging.operation.name": "process", "messaging.operation.type": "process",
		"messaging.destination.name": "orders.work", "messaging.rabbitmq.destination.routing_key": "order.created",
		"messaging.message.id": "m-1", "messaging.message.conversation_id": "c-1", "messaging.message.body.size": "3",
		"messaging.rabbitmq.message.delivery_tag": "7", "warren.redelivered": "true", "error.type": "error",
	}, attributes(span.Attributes))

	// A message without a context begins a trace, rather than joining the one of what runs the worker.
	_, p = c.Process(run, &amqp.Delivery{})
	p.Returned("")
	p.End("", nil)
	span = l.Spans()[1]
	require.False(t, span.Parent.IsValid())
	require.NotEqual(t, outer.SpanContext().TraceID(), span.SpanContext.TraceID())
	require.Equal(t, map[string]float64{"error": 1, "": 1}, l.metric(metricProcess, keyErrorType))

	c.Settled(Acknowledged, 3)
	c.Settled(Stale, 1)
	c.Settled(Stale, 0)
	c.NotNow(1500 * time.Millisecond)
	require.Equal(t, map[string]float64{Acknowledged: 3, Stale: 1}, l.metric(metricConsumed, keyOutcome))
	require.Equal(t, map[string]float64{"orders.work": 1.5}, l.metric(metricNotNow, keyDestination))
}

func TestABatchIsLinkedToItsMessages(t *testing.T) {
	l := newLab(t)
	ds := []amqp.Delivery{
		{MessageId: "1", Headers: amqp.Table{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}},
		{MessageId: "2"},
		{MessageId: "3", Headers: amqp.Table{"traceparent": "00-1af7651916cd43dd8448eb211c80319c-c7ad6b7169203331-01"}},
	}
	ctx, p := l.Consumer("q").ProcessBatch(t.Context(), ds)
	require.True(t, trace.SpanContextFromContext(ctx).IsValid())
	p.Returned("")
	p.End("", nil)
	span := l.Spans()[0]
	require.False(t, span.Parent.IsValid())
	require.Equal(t, "3", attributes(span.Attributes)["messaging.batch.message_count"])
	var linked []string
	for _, link := range span.Links {
		linked = append(linked, link.SpanContext.SpanID().String()+" "+attributes(link.Attributes)["messaging.message.id"])
	}
	require.Equal(t, []string{"b7ad6b7169203331 1", "c7ad6b7169203331 3"}, linked)
}

// Whatever a stranger puts into the headers, the handler gets a context and a trace of its own.
func TestHostileHeaders(t *testing.T) {
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for name, headers := range map[string]amqp.Table{
		"empty":           {"traceparent": ""},
		"not hex":         {"traceparent": "00-zzf7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
		"zero trace":      {"traceparent": "00-00000000000000000000000000000000-b7ad6b7169203331-01"},
		"zero span":       {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01"},
		"version ff":      {"traceparent": "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
		"long":            {"traceparent": good + strings.Repeat("-00", 20_000)},
		"only dashes":     {"traceparent": strings.Repeat("-", 8000)},
		"NUL and escapes": {"traceparent": "00-\x00\x1b[2J-\xff\xfe-01"},
		"number":          {"traceparent": int64(7)},
		"table":           {"traceparent": amqp.Table{"traceparent": good}},
		"array":           {"traceparent": []any{good, good}},
		"nil":             {"traceparent": nil},
		"baggage only":    {"baggage": strings.Repeat("a", 9000)},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			d := amqp.Delivery{Headers: headers}
			ctx, p := l.Consumer("q").Process(t.Context(), &d)
			require.Zero(t, baggage.FromContext(ctx).Len())
			require.True(t, trace.SpanContextFromContext(ctx).IsValid())
			p.End("", nil)
			require.False(t, l.Spans()[0].Parent.IsValid())
			_, p = l.Consumer("q").ProcessBatch(t.Context(), []amqp.Delivery{d, d})
			p.End("", nil)
			require.Empty(t, l.Spans()[1].Links)
			out := l.Publish(t.Context(), "", "q", headers)
			msg := amqp.Publishing{Headers: headers}
			out.Inject(&msg)
			out.End("", nil, true)
		})
	}
	t.Run("tracestate too long, too many", func(t *testing.T) {
		l := newLab(t)
		for _, state := range []string{strings.Repeat("a=b,", 4000), strings.Repeat("a=b,", 100), "\x00\xff=\x01"} {
			ctx, p := l.Consumer("q").Process(t.Context(), &amqp.Delivery{Headers: amqp.Table{"traceparent": good, "tracestate": state}})
			sc := trace.SpanContextFromContext(ctx)
			require.Equal(t, "0af7651916cd43dd8448eb211c80319c", sc.TraceID().String())
			require.Zero(t, sc.TraceState().Len())
			p.End("", nil)
		}
	})
}

// Bytes are understood as well: that is how some clients send strings.
func TestBytesAreStrings(t *testing.T) {
	l := newLab(t)
	ctx, p := l.Consumer("q").Process(t.Context(), &amqp.Delivery{Headers: amqp.Table{
		"traceparent": []byte("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")}})
	require.Equal(t, "0af7651916cd43dd8448eb211c80319c", trace.SpanContextFromContext(ctx).TraceID().String())
	p.End("", nil)
}

func TestBaggageIsBounded(t *testing.T) {
	l := newLab(t)
	for _, c := range []struct {
		size int
		goes bool
	}{{8000, true}, {8188, true}, {8189, false}, {20_000, false}} {
		member, err := baggage.NewMemberRaw("big", strings.Repeat("x", c.size))
		require.NoError(t, err)
		bag, err := baggage.New(member)
		if err != nil {
			require.Greater(t, c.size, 8000) // the API itself refuses it
			continue
		}
		msg := amqp.Publishing{}
		p := l.Publish(baggage.ContextWithBaggage(t.Context(), bag), "x", "k", nil)
		p.Inject(&msg)
		_, sent := msg.Headers["baggage"]
		require.Equal(t, c.goes, sent, "%d", c.size)
		require.Contains(t, msg.Headers, "traceparent")
		p.End("", nil, true)

		ctx, _ := l.Consumer("q").Process(t.Context(), &amqp.Delivery{Headers: amqp.Table{"baggage": "big=" + strings.Repeat("x", c.size)}})
		require.Equal(t, c.goes, baggage.FromContext(ctx).Len() == 1)
	}
}

// Names that a program makes up do not fill the memory, here or where the metrics go.
func TestDestinationsAreBounded(t *testing.T) {
	var ds destinations
	ds.init()
	for i := range 3 * maxDestinations {
		ds.of(fmt.Sprint("x", i), "")
		ds.of("", fmt.Sprint("q", i))
		ds.of("", fmt.Sprint("amq.gen-", i))
	}
	require.Len(t, ds.exchanges, maxDestinations/2)
	require.Len(t, ds.queues, maxDestinations/2)
	name := func(exchange, key string) string {
		return attributes(ds.of(exchange, key).attrs)["messaging.destination.name"]
	}
	require.Equal(t, "x1", name("x1", "any"))
	require.Equal(t, "q1", name("", "q1"))
	require.Equal(t, otherDestination, name("new", ""))
	require.Equal(t, temporaryDestination, name("", "amq.rabbitmq.reply-to.abc"))
	require.Equal(t, "true", attributes(ds.of("", "amq.gen-1").attrs)["messaging.destination.temporary"])
	require.Equal(t, invalidDestination, name(strings.Repeat("x", 256), ""))
	require.Equal(t, invalidDestination, name("\xff", ""))
}

func TestObserve(t *testing.T) {
	l := newLab(t)
	stop := l.Observe(Conn{Name: "billing", Unconfirmed: func() int64 { return 5 }, Callers: func() int64 { return 7 },
		Links: func() []Link {
			return []Link{{Role: "publishing", Up: true, Reconnects: 2, Blocked: 1.5}, {Role: "consuming", Reconnects: 1}}
		}})
	stopQueues := l.ObserveQueues(func(context.Context) []Queue { return []Queue{{"work", 12, 3}, {"work.dlq", 0, 0}} })
	require.Equal(t, map[string]float64{"publishing": 1, "consuming": 0}, l.metric(metricUp, keyLink))
	require.Equal(t, map[string]float64{"publishing": 2, "consuming": 1}, l.metric(metricReconnects, keyLink))
	require.Equal(t, map[string]float64{"publishing": 1.5, "consuming": 0}, l.metric(metricBlocked, keyLink))
	require.Equal(t, map[string]float64{"billing": 5}, l.metric(metricUnconfirmed, keyConnection))
	require.Equal(t, map[string]float64{"billing": 7}, l.metric(metricCallers, keyConnection))
	require.Equal(t, map[string]float64{"work": 12, "work.dlq": 0}, l.metric(metricMessages, keyDestination))
	require.Equal(t, map[string]float64{"work": 3, "work.dlq": 0}, l.metric(metricConsumers, keyDestination))
	stop()
	stopQueues()
	require.Empty(t, l.metric(metricUp, keyLink))
	require.Empty(t, l.metric(metricMessages, keyDestination))
}

// Without a provider nothing is allocated, and nothing happens; the propagator alone does not need one.
func TestNothingSet(t *testing.T) {
	for name, c := range map[string]Config{
		"global": {},
		"no-op":  {TracerProvider: tracenoop.NewTracerProvider(), MeterProvider: metricnoop.NewMeterProvider(), Propagator: propagation.NewCompositeTextMapPropagator()},
	} {
		tel := New(c)
		consumer, ctx := tel.Consumer("q"), context.Background()
		d := amqp.Delivery{Headers: amqp.Table{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}
		n := testing.AllocsPerRun(1000, func() {
			msg := amqp.Publishing{Headers: d.Headers}
			p := tel.Publish(ctx, "x", "k", msg.Headers)
			if p.Inject(&msg) || p.Told() {
				t.Fatal("did something")
			}
			p.Describe(&msg)
			p.End("", nil, true)
			got, h := consumer.Process(ctx, &d)
			if got != ctx || h.Told() {
				t.Fatal("did something")
			}
			h.Returned("")
			h.End("", nil)
			consumer.Settled(Acknowledged, 1)
			consumer.NotNow(time.Second)
		})
		require.Zero(t, n, name)
	}
}

// With a propagator, a publish allocates the header's string and its place in the table.
func TestAllocationsWithAPropagator(t *testing.T) {
	tel := New(Config{Propagator: all})
	ctx := trace.ContextWithSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}}))
	// The race detector has sync.Pool forget a quarter of what it gets, which costs 0.75 on an average that has to be one.
	n := testing.AllocsPerRun(10_000, func() {
		msg := amqp.Publishing{}
		p := tel.Publish(ctx, "x", "k", msg.Headers)
		p.Inject(&msg)
		p.End("", nil, true)
	})
	require.LessOrEqual(t, n, 2.0)
}

// Metrics allocate nothing for a message that goes well.
func TestAllocationsWithMetrics(t *testing.T) {
	mp := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
	defer func() { require.NoError(t, mp.Shutdown(context.Background())) }()
	tel := New(Config{MeterProvider: mp})
	consumer, ctx := tel.Consumer("q"), context.Background()
	d := amqp.Delivery{}
	n := testing.AllocsPerRun(1000, func() {
		p := tel.Publish(ctx, "x", "k", nil)
		p.End("", nil, true)
		_, h := consumer.Process(ctx, &d)
		h.Returned("")
		h.End("", nil)
		consumer.Settled(Acknowledged, 1)
	})
	require.Zero(t, n)
}

// Providers that are set after New are used from then on. OpenTelemetry's placeholders go on to the first ones only, so this
// takes a process of its own.
func TestGlobalSetLater(t *testing.T) {
	if os.Getenv("WARREN_TELEMETRY_CHILD") == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestGlobalSetLater$", "-test.v")
		cmd.Env = append(os.Environ(), "WARREN_TELEMETRY_CHILD=1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "PASS: TestGlobalSetLater")
		return
	}
	tel := New(Config{})
	p := tel.Publish(t.Context(), "x", "k", nil)
	require.False(t, p.Told())

	seen := sight.New(t)
	otel.SetTracerProvider(seen.TracerProvider)
	otel.SetMeterProvider(seen.MeterProvider)
	otel.SetTextMapPropagator(all)

	msg := amqp.Publishing{}
	p = tel.Publish(t.Context(), "x", "k", nil)
	require.True(t, p.Told())
	require.True(t, p.Inject(&msg))
	require.Equal(t, []string{"traceparent"}, slices.Collect(maps.Keys(msg.Headers)))
	p.End("", nil, true)
	require.Len(t, seen.Spans(), 1)
	require.Equal(t, map[string]float64{"x": 1}, seen.Metric(metricSent, string(keyDestination)))
}

// Whoever makes a dashboard finds every name on one page.
func TestNamesAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/telemetry.md")
	require.NoError(t, err)
	source, err := os.ReadFile("names.go")
	require.NoError(t, err)
	names := regexp.MustCompile(`"((?:messaging|warren|error)\.[a-z_.]+)"`).FindAllStringSubmatch(string(source), -1)
	require.Greater(t, len(names), 25)
	for _, name := range names {
		require.Contains(t, string(page), "`"+name[1]+"`")
	}
}

// FuzzExtract: no headers make it panic, or find a context that is not valid.
func FuzzExtract(f *testing.F) {
	f.Add("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=b", "tenant=a;p=1")
	f.Add("", "\x00", strings.Repeat("k=v,", 100))
	tel := New(Config{Propagator: all})
	f.Fuzz(func(t *testing.T, parent, state, bag string) {
		ctx, found := tel.extract(context.Background(), amqp.Table{"traceparent": parent, "tracestate": state, "baggage": bag})
		require.Equal(t, found, trace.SpanContextFromContext(ctx).IsValid())
		msg := amqp.Publishing{}
		p := tel.Publish(ctx, "x", "k", nil)
		p.Inject(&msg)
		for name, v := range msg.Headers {
			require.LessOrEqual(t, len(v.(string)), maxField, name)
		}
		p.End("", nil, true)
	})
}

// An exporter cannot send what is not UTF-8, nor anything else that it was to send together with that.
func TestHostileText(t *testing.T) {
	l := newLab(t)
	const bad = "\xff\x00\xc3"
	long := errors.New(strings.Repeat("x", 999) + "é, of which half is cut off")
	for _, fault := range []error{errors.New(bad), long} {
		d := amqp.Delivery{MessageId: bad, CorrelationId: bad, RoutingKey: bad, Headers: amqp.Table{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}
		_, p := l.Consumer("q").Process(t.Context(), &d)
		p.End("error", fault)
		_, p = l.Consumer("q").ProcessBatch(t.Context(), []amqp.Delivery{d})
		p.End("error", fault)
		msg := amqp.Publishing{MessageId: bad, CorrelationId: bad}
		out := l.Publish(t.Context(), "x", bad, nil)
		out.Describe(&msg)
		out.Again(fault)
		out.End("invalid", fault, false)
		out = l.Publish(t.Context(), "", bad, nil)
		out.End("invalid", fault, false)
	}
	spans := l.Spans()
	require.Len(t, spans, 8)
	for _, span := range spans {
		require.True(t, utf8.ValidString(span.Name), "%q", span.Name)
		require.True(t, utf8.ValidString(span.Status.Description), "%q", span.Status.Description)
		all := span.Attributes
		for _, e := range span.Events {
			all = append(all, e.Attributes...)
		}
		for _, link := range span.Links {
			all = append(all, link.Attributes...)
		}
		for _, kv := range all {
			require.True(t, utf8.ValidString(kv.Value.String()), "%s %s: %q", span.Name, kv.Key, kv.Value.String())
		}
	}
}
