package consume

import (
	"context"
	"strings"
	"sync"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/warrenmq/warren/internal/testenv"
)

// badProcessor and badPropagator are of somebody's own.
type badProcessor struct{}

func (badProcessor) OnStart(context.Context, sdktrace.ReadWriteSpan) {}
func (badProcessor) OnEnd(sdktrace.ReadOnlySpan)                     { panic("oops at the end") }
func (badProcessor) Shutdown(context.Context) error                  { return nil }
func (badProcessor) ForceFlush(context.Context) error                { return nil }

type badPropagator struct{ propagation.TraceContext }

func (badPropagator) Extract(context.Context, propagation.TextMapCarrier) context.Context {
	panic("oops in a header")
}

// safeText is a log.
type safeText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *safeText) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *safeText) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// What panics of the telemetry costs no message and no worker.
func TestTelemetryThatPanics(t *testing.T) {
	const n = 20
	for name, batch := range map[string]bool{"one by one": false, "batches": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			ch := r.channel()
			for range n {
				require.NoError(t, ch.Publish("", r.queue, true, false, amqp.Publishing{
					Headers: amqp.Table{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}))
			}
			var log safeText
			cfg := r.config(func(context.Context, amqp.Delivery) error { return nil })
			if batch {
				cfg = r.batchConfig(func(context.Context, []amqp.Delivery) error { return nil })
			}
			cfg.TracerProvider = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(badProcessor{}))
			cfg.MeterProvider, cfg.Propagator = sdkmetric.NewMeterProvider(), badPropagator{}
			cfg.Logger = testenv.Logger(&log)
			l := start(t, cfg)
			r.eventually(func() bool { return l.Stats().Handled == n }, "all are handled")
			r.empty(0)
			require.NoError(t, l.stop())
			require.Equal(t, Stats{Handled: n}, l.Stats())
			require.Equal(t, 1, strings.Count(log.String(), "panic in the TracerProvider"), log.String())
			require.Equal(t, 1, strings.Count(log.String(), "panic in the Propagator"), log.String())
		})
	}
}

// brokenError is an error that was never made: a nil pointer in the place of one.
type brokenError struct{ text string }

func (e *brokenError) Error() string { return e.text }

// A handler that returns a nil pointer as its error has failed; it costs nobody the program.
func TestHandlerErrorThatPanics(t *testing.T) {
	r := newRig(t, nil)
	r.publish(0, 3)
	l := start(t, r.config(func(_ context.Context, d amqp.Delivery) error {
		if d.MessageId == "1" {
			return (*brokenError)(nil)
		}
		return nil
	}))
	r.empty(1)
	require.NoError(t, l.stop())
	require.EqualValues(t, 2, l.Stats().Handled)
	require.EqualValues(t, 1, l.Stats().Failed)
}
