// Package sight keeps what is told to OpenTelemetry in memory, for tests to look at.
package sight

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

// Sight is the providers that a test gives to what it tests, and what came of it.
type Sight struct {
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider
	Propagator     propagation.TextMapPropagator // trace context and baggage
	Tracer         trace.Tracer                  // the test's own

	tb     testing.TB
	spans  *tracetest.InMemoryExporter
	reader *sdkmetric.ManualReader
}

// New returns a Sight that is shut down when the test ends, after what the test has registered later.
func New(tb testing.TB) *Sight {
	tb.Helper()
	s := &Sight{tb: tb, spans: tracetest.NewInMemoryExporter(), reader: sdkmetric.NewManualReader()}
	tp := sdktrace.NewTracerProvider(sdktrace.WithSyncer(s.spans))
	mp := sdkmetric.NewMeterProvider(sdkmetric.WithReader(s.reader))
	tb.Cleanup(func() {
		require.NoError(tb, tp.Shutdown(context.Background()))
		require.NoError(tb, mp.Shutdown(context.Background()))
	})
	s.TracerProvider, s.MeterProvider, s.Tracer = tp, mp, tp.Tracer("test")
	s.Propagator = propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})
	return s
}

// Spans returns those that have ended, in that order.
func (s *Sight) Spans() tracetest.SpanStubs { return s.spans.GetSpans() }

// Named returns those of them with a name.
func (s *Sight) Named(name string) (out tracetest.SpanStubs) {
	for _, span := range s.Spans() {
		if span.Name == name {
			out = append(out, span)
		}
	}
	return out
}

// Metric collects, and returns the values of a metric added up by an attribute's value, for a histogram how many there were.
func (s *Sight) Metric(name, by string) map[string]float64 {
	s.tb.Helper()
	var rm metricdata.ResourceMetrics
	require.NoError(s.tb, s.reader.Collect(context.Background(), &rm))
	out := map[string]float64{}
	for _, scope := range rm.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name == name {
				add(out, m.Data, attribute.Key(by))
			}
		}
	}
	return out
}

func add(out map[string]float64, data metricdata.Aggregation, by attribute.Key) {
	switch data := data.(type) {
	case metricdata.Sum[int64]:
		points(out, data.DataPoints, by)
	case metricdata.Sum[float64]:
		points(out, data.DataPoints, by)
	case metricdata.Gauge[int64]:
		points(out, data.DataPoints, by)
	case metricdata.Histogram[float64]:
		for _, p := range data.DataPoints {
			value, _ := p.Attributes.Value(by)
			out[value.String()] += float64(p.Count)
		}
	}
}

func points[N int64 | float64](out map[string]float64, ps []metricdata.DataPoint[N], by attribute.Key) {
	for _, p := range ps {
		value, _ := p.Attributes.Value(by)
		out[value.String()] += float64(p.Value)
	}
}

// Attributes returns attributes as text.
func Attributes(kvs []attribute.KeyValue) map[string]string {
	out := map[string]string{}
	for _, kv := range kvs {
		out[string(kv.Key)] = kv.Value.String()
	}
	return out
}
