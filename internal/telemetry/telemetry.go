package telemetry

import (
	"log/slog"
	"sync"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
)

// Config is where telemetry goes; nil stands for OpenTelemetry's global one.
type Config struct {
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider
	Propagator     propagation.TextMapPropagator
	Logger         *slog.Logger // gets what of these panics; nil: slog.Default()
}

// WithDefaults returns c with what is nil taken from OpenTelemetry's global ones.
func (c Config) WithDefaults() Config {
	if c.TracerProvider == nil {
		c.TracerProvider = otel.GetTracerProvider()
	}
	if c.MeterProvider == nil {
		c.MeterProvider = otel.GetMeterProvider()
	}
	if c.Propagator == nil {
		c.Propagator = otel.GetTextMapPropagator()
	}
	return c
}

// T tells OpenTelemetry what happens. It is safe for concurrent use.
type T struct {
	tracing, metering, propagating source

	log        *slog.Logger
	tracer     trace.Tracer
	meter      metric.Meter
	propagator propagation.TextMapPropagator
	fields     func() []string // the headers that the propagator uses

	operation metric.Float64Histogram
	sent      metric.Int64Counter
	process   metric.Float64Histogram
	consumed  metric.Int64Counter
	notNow    metric.Float64Counter

	destinations destinations
	carriers     sync.Pool // of *carrier
}

// New returns a T that reports to what c names.
func New(c Config) *T {
	c = c.WithDefaults()
	t := &T{
		log:        c.Logger,
		propagator: c.Propagator,
		carriers:   sync.Pool{New: func() any { return newCarrier() }},
	}
	t.tracing.name, t.metering.name, t.propagating.name = "TracerProvider", "MeterProvider", "Propagator"
	t.tracing.begin(c.TracerProvider, func() any { return otel.GetTracerProvider() })
	t.metering.begin(c.MeterProvider, func() any { return otel.GetMeterProvider() })
	t.propagating.begin(c.Propagator, func() any { return otel.GetTextMapPropagator() })
	t.fields = sync.OnceValue(t.fieldsOf(c)) // asked when the propagator is known to be there
	if t.propagating.there.Load() && len(t.fields()) == 0 {
		t.propagating.there.Store(false) // it does nothing
	}
	t.destinations.init()
	t.begin(c)
	return t
}

// begin decides whether given counts, or has to be looked for again.
func (s *source) begin(given any, global func() any) {
	switch given.(type) {
	case tracenoop.TracerProvider, *tracenoop.TracerProvider, metricnoop.MeterProvider, *metricnoop.MeterProvider:
		return
	}
	if isPlaceholder(given) {
		s.global = global
		return
	}
	s.there.Store(true)
}

func (t *T) instruments() {
	var err error
	hist := func(name, what string) metric.Float64Histogram {
		var h metric.Float64Histogram
		h, err = t.meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(what), metric.WithExplicitBucketBoundaries(buckets...))
		handle(err)
		return h
	}
	count := func(name, what string) metric.Int64Counter {
		var c metric.Int64Counter
		c, err = t.meter.Int64Counter(name, metric.WithUnit("{message}"), metric.WithDescription(what))
		handle(err)
		return c
	}
	t.operation = hist(metricOperation, "Time from the call of a publish to its outcome.")
	t.process = hist(metricProcess, "Time of one call of a handler.")
	t.sent = count(metricSent, "Messages sent, by what became of them.")
	t.consumed = count(metricConsumed, "Messages that came, by what became of them.")
	t.notNow, err = t.meter.Float64Counter(metricNotNow, metric.WithUnit("s"), metric.WithDescription(`Time for which workers waited after "not now".`))
	handle(err)
}

// handle gives an error to OpenTelemetry's handler; there is always an instrument beside it.
func handle(err error) {
	if err != nil {
		otel.Handle(err)
	}
}
