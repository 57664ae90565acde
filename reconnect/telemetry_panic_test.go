package reconnect

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/warrenmq/warren/internal/testenv"
)

// badProcessor is a SpanProcessor of somebody's own.
type badProcessor struct{}

func (badProcessor) OnStart(context.Context, sdktrace.ReadWriteSpan) { panic("oops at the start") }
func (badProcessor) OnEnd(sdktrace.ReadOnlySpan)                     { panic("oops at the end") }
func (badProcessor) Shutdown(context.Context) error                  { return nil }
func (badProcessor) ForceFlush(context.Context) error                { return nil }

// What panics of the telemetry harms no publish, and is logged once.
func TestPublishWhileTheTelemetryPanics(t *testing.T) {
	t.Parallel()
	broker := testenv.Shared(t)
	raw, err := broker.Dial(t).Channel()
	require.NoError(t, err)
	conn, log := dialed(t, broker.URL(), Config{TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(badProcessor{}))})
	pub, err := conn.NewPublisher(PublisherConfig{})
	require.NoError(t, err)
	p := &pubTest{t: t, broker: broker, conn: conn, p: pub, raw: raw}
	queue := p.queue(nil)
	for range 5 {
		require.NoError(t, p.publish("", queue, "m"))
	}
	require.NoError(t, p.p.PublishBatch(t.Context(), []Message{{Key: queue}, {Key: queue}}))
	require.Len(t, p.arrived(queue, 7), 7)
	require.Equal(t, 1, strings.Count(log.String(), "panic in the TracerProvider"), log)
}
