package telemetry

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/warrenmq/warren/internal/testenv"
)

// The pieces of a user's own that may panic.
type (
	badProcessor  struct{ start, end bool }
	badPropagator struct {
		propagation.TextMapPropagator
		inject, extract, fields bool
	}
	badTracers struct{ trace.TracerProvider }
	badMeters  struct{ metric.MeterProvider }
	badMeter   struct {
		metric.Meter
		making bool
	}
	badMeterProvider struct {
		metric.MeterProvider
		making bool
	}
	badHistogram    struct{ metric.Float64Histogram }
	badCounter      struct{ metric.Int64Counter }
	badRegistration struct{ metric.Registration }
)

func (p badProcessor) OnStart(context.Context, sdktrace.ReadWriteSpan) {
	if p.start {
		panic("oops: OnStart")
	}
}

func (p badProcessor) OnEnd(sdktrace.ReadOnlySpan) {
	if p.end {
		panic("oops: OnEnd")
	}
}
func (badProcessor) Shutdown(context.Context) error   { return nil }
func (badProcessor) ForceFlush(context.Context) error { return nil }

func (p badPropagator) Inject(ctx context.Context, c propagation.TextMapCarrier) {
	c.Set("half", "done")
	if p.inject {
		panic("oops: Inject")
	}
	p.TextMapPropagator.Inject(ctx, c)
}

func (p badPropagator) Extract(ctx context.Context, c propagation.TextMapCarrier) context.Context {
	if p.extract {
		panic("oops: Extract")
	}
	return p.TextMapPropagator.Extract(ctx, c)
}

func (p badPropagator) Fields() []string {
	if p.fields {
		panic("oops: Fields")
	}
	return p.TextMapPropagator.Fields()
}

func (badTracers) Tracer(string, ...trace.TracerOption) trace.Tracer { panic("oops: Tracer") }
func (badMeters) Meter(string, ...metric.MeterOption) metric.Meter   { panic("oops: Meter") }

func (p badMeterProvider) Meter(name string, o ...metric.MeterOption) metric.Meter {
	return badMeter{p.MeterProvider.Meter(name, o...), p.making}
}

func (m badMeter) Float64Histogram(name string, o ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	if m.making {
		panic("oops: Float64Histogram")
	}
	h, err := m.Meter.Float64Histogram(name, o...)
	return badHistogram{h}, err
}

func (m badMeter) Int64Counter(name string, o ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	c, err := m.Meter.Int64Counter(name, o...)
	return badCounter{c}, err
}

func (m badMeter) RegisterCallback(f metric.Callback, on ...metric.Observable) (metric.Registration, error) {
	if m.making {
		panic("oops: RegisterCallback")
	}
	r, err := m.Meter.RegisterCallback(f, on...)
	return badRegistration{r}, err
}

func (badHistogram) Record(context.Context, float64, ...metric.RecordOption) { panic("oops: Record") }
func (badCounter) Add(context.Context, int64, ...metric.AddOption)           { panic("oops: Add") }
func (r badRegistration) Unregister() error {
	_ = r.Registration.Unregister()
	panic("oops: Unregister")
}

// written is a log.
type written struct {
	mu sync.Mutex
	strings.Builder
}

func (w *written) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Builder.Write(p)
}

// What panics of the user's OpenTelemetry ends no publish, no handler and no program; it is logged once, with where it was, and
// what else there is to tell is told.
func TestPiecesThatPanic(t *testing.T) {
	good := newLab(t)
	tracers := func(p badProcessor) trace.TracerProvider {
		return sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(p))
	}
	base := Config{TracerProvider: good.TracerProvider, MeterProvider: good.MeterProvider, Propagator: all}
	for name, tc := range map[string]struct {
		change func(c *Config)
		says   []string
	}{
		"OnStart":           {func(c *Config) { c.TracerProvider = tracers(badProcessor{start: true}) }, []string{"TracerProvider"}},
		"OnEnd":             {func(c *Config) { c.TracerProvider = tracers(badProcessor{end: true}) }, []string{"TracerProvider"}},
		"Inject":            {func(c *Config) { c.Propagator = badPropagator{TextMapPropagator: all, inject: true} }, []string{"Propagator"}},
		"Extract":           {func(c *Config) { c.Propagator = badPropagator{TextMapPropagator: all, extract: true} }, []string{"Propagator"}},
		"Fields":            {func(c *Config) { c.Propagator = badPropagator{TextMapPropagator: all, fields: true} }, []string{"Propagator"}},
		"Tracer":            {func(c *Config) { c.TracerProvider = badTracers{} }, []string{"TracerProvider"}},
		"Meter":             {func(c *Config) { c.MeterProvider = badMeters{} }, []string{"MeterProvider"}},
		"Record and Add":    {func(c *Config) { c.MeterProvider = badMeterProvider{MeterProvider: good.MeterProvider} }, []string{"MeterProvider"}},
		"making of metrics": {func(c *Config) { c.MeterProvider = badMeterProvider{good.MeterProvider, true} }, []string{"MeterProvider"}},
		"all of them": {func(c *Config) {
			c.TracerProvider, c.MeterProvider, c.Propagator = badTracers{}, badMeters{}, badPropagator{all, true, true, false}
		}, []string{"TracerProvider", "MeterProvider", "Propagator"}},
	} {
		t.Run(name, func(t *testing.T) {
			var log written
			cfg := base
			cfg.Logger = testenv.Logger(&log)
			tc.change(&cfg)
			tel := New(cfg)
			stop := tel.Observe(Conn{Links: func() []Link { return nil }, Unconfirmed: func() int64 { return 0 }, Callers: func() int64 { return 0 }})
			stopQueues := tel.ObserveQueues(func(context.Context) []Queue { return nil })
			carried := amqp.Table{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
			type key struct{}
			ctx := context.WithValue(t.Context(), key{}, "kept")
			consumer := tel.Consumer("q")
			for range 3 {
				for _, headers := range []amqp.Table{nil, carried} {
					p := tel.Publish(ctx, "x", "k", headers)
					msg := amqp.Publishing{Headers: headers}
					if p.Inject(&msg); name == "Inject" || name == "all of them" {
						require.NotContains(t, msg.Headers, "half")
					}
					p.Describe(&msg)
					p.Again(errors.New("lost"))
					p.End("other", errors.New("lost"), true)
					in, run := consumer.Process(ctx, &amqp.Delivery{Headers: headers})
					require.Equal(t, "kept", in.Value(key{}))
					run.Returned("")
					run.End("", nil)
				}
				in, run := consumer.ProcessBatch(ctx, []amqp.Delivery{{Headers: carried}, {}})
				require.Equal(t, "kept", in.Value(key{}))
				run.Returned("error")
				run.End("error", errors.New("error"))
				tel.Unsent(ctx, "x", "k", "canceled", time.Now())
				consumer.Settled(Acknowledged, 2)
				consumer.NotNow(time.Second)
			}
			stop()
			stopQueues()
			lines := strings.Split(strings.TrimSpace(log.String()), "\n")
			require.Len(t, lines, len(tc.says), "once each")
			for _, piece := range tc.says {
				require.Contains(t, log.String(), piece)
			}
			require.Contains(t, log.String(), "oops")
			require.Contains(t, log.String(), "stack=")
		})
	}
	// Beside a piece that panics the others tell what they have to.
	require.NotEmpty(t, good.Named("publish x"))
	require.NotEmpty(t, good.metric("messaging.client.sent.messages", keyErrorType))
}

// After a while it is said again.
func TestAPanicIsSaidAgainAfterAWhile(t *testing.T) {
	var log written
	tel := New(Config{Logger: testenv.Logger(&log)})
	at := time.Now()
	for _, since := range []time.Duration{0, time.Second, sayAgain - time.Second, sayAgain + time.Second, sayAgain + 2*time.Second} {
		tel.panicked(&tel.tracing, "oops", at.Add(since))
	}
	require.Equal(t, 2, strings.Count(log.String(), "level=ERROR"))
}
