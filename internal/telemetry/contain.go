package telemetry

import (
	"context"
	"log/slog"
	"runtime/debug"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
)

// sayAgain is how long nothing is said of further panics of the same piece.
const sayAgain = time.Minute

// contain, deferred, ends a panic of a piece that was given to us: what watches over the work must not end it. The recover has to
// be in a function that was deferred itself.
func (t *T) contain(piece *source) {
	if v := recover(); v != nil {
		t.panicked(piece, v, time.Now())
	}
}

// panicked says so, the first time and then once in a while.
func (t *T) panicked(piece *source, v any, now time.Time) {
	last := piece.said.Load()
	if last != 0 && now.UnixNano()-last < int64(sayAgain) || !piece.said.CompareAndSwap(last, now.UnixNano()) {
		return
	}
	log := t.log
	if log == nil {
		log = slog.Default()
	}
	log.Error("panic in the "+piece.name+"; what it was to be told is lost", "panic", v, "stack", string(debug.Stack()))
}

// begin makes what is used of c's providers; what cannot be made does nothing.
func (t *T) begin(c Config) {
	t.tracer, t.meter = tracenoop.Tracer{}, metricnoop.Meter{}
	t.instruments()
	func() {
		defer t.contain(&t.tracing)
		t.tracer = c.TracerProvider.Tracer(scope)
	}()
	defer t.contain(&t.metering)
	t.meter = c.MeterProvider.Meter(scope)
	t.instruments()
}

// start begins a span. It is nil, and the context ctx, when that panics.
func (t *T) start(ctx context.Context, name string, opts ...trace.SpanStartOption) (own context.Context, span trace.Span) {
	own = ctx
	defer t.contain(&t.tracing)
	return t.tracer.Start(ctx, name, opts...)
}

// on does something to a span, if it is there and recorded.
func (t *T) on(span trace.Span, do func(trace.Span)) {
	if span == nil {
		return
	}
	defer t.contain(&t.tracing)
	if span.IsRecording() {
		do(span)
	}
}

// record measures a duration that began then.
func (t *T) record(ctx context.Context, h metric.Float64Histogram, began time.Time, m *measured) {
	defer t.contain(&t.metering)
	h.Record(ctx, time.Since(began).Seconds(), m.record...)
}

// count adds n to a counter.
func (t *T) count(ctx context.Context, c metric.Int64Counter, n int64, m *measured) {
	defer t.contain(&t.metering)
	c.Add(ctx, n, m.add...)
}

// inject returns the trace context of ctx as headers beside the given ones, or nil when there is none, or no telling.
func (t *T) inject(ctx context.Context, headers amqp.Table) (c *carrier) {
	defer t.contain(&t.propagating)
	into := t.carrier(headers)
	t.propagator.Inject(ctx, into)
	if len(into.out) == 0 {
		t.release(into)
		return nil
	}
	return into
}

// extracted returns ctx with what headers carry, or ctx itself.
func (t *T) extracted(ctx context.Context, headers amqp.Table) (own context.Context) {
	own = ctx
	defer t.contain(&t.propagating)
	c := t.carrier(headers)
	defer t.release(c)
	return t.propagator.Extract(ctx, c)
}

// fieldsOf asks a propagator for its headers.
func (t *T) fieldsOf(c Config) func() []string {
	return func() (fields []string) {
		defer t.contain(&t.propagating)
		return c.Propagator.Fields()
	}
}
