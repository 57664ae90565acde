package reconnect

import (
	"context"
	"encoding/binary"
	"net"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/warrenmq/warren/internal/testenv/peer"
)

// Against a peer that allocates nothing, a publish costs at most two allocations more than the driver's own with the same
// MessageId and Timestamp. A trace that nothing propagates costs nothing, nor do metrics. With a propagator it is at most
// three more than the driver takes with such a header, twelve of its own: the header's text, and its place in the table.
func TestPublishAllocations(t *testing.T) {
	msg := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: make([]byte, 256)}
	withHeader := msg
	withHeader.Headers = amqp.Table{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
	raw, header := rawAllocs(t, msg), rawAllocs(t, withHeader)
	ctx := context.Background()
	ours, batched := publishAllocs(t, Config{}, ctx, msg)
	inTrace := trace.ContextWithSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}}))
	unset, unsetBatch := publishAllocs(t, Config{}, inTrace, msg)
	traced, tracedBatch := publishAllocs(t, Config{Propagator: propagation.TraceContext{}}, inTrace, msg)
	metrics := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
	defer func() { require.NoError(t, metrics.Shutdown(context.Background())) }()
	measured, measuredBatch := publishAllocs(t, Config{MeterProvider: metrics}, ctx, msg)
	t.Logf("raw %.0f, ours %.0f, in a batch %.1f; in a trace that nothing propagates %.0f, %.1f; with metrics %.0f, %.1f; "+
		"raw with a traceparent %.0f, ours with a propagator %.0f, %.1f",
		raw, ours, batched, unset, unsetBatch, measured, measuredBatch, header, traced, tracedBatch)
	assert.LessOrEqual(t, ours, raw+2)
	assert.LessOrEqual(t, batched, raw+2)
	assert.Equal(t, ours, unset)
	assert.LessOrEqual(t, unsetBatch, raw+2)
	assert.LessOrEqual(t, measured, raw+2)
	assert.LessOrEqual(t, measuredBatch, raw+2)
	pooled := 0.0 // the race detector makes sync.Pool forget some of what it is given
	if raceEnabled {
		pooled = 4
	}
	assert.LessOrEqual(t, traced, header+3+pooled)
	assert.LessOrEqual(t, tracedBatch, header+3+pooled)
}

// rawAllocs returns what a publish with a confirmation costs the driver used by hand.
func rawAllocs(t *testing.T, msg amqp.Publishing) float64 {
	conn, err := amqp.Open(pipeToPeer(), amqp.Config{SASL: []amqp.Authentication{&amqp.PlainAuth{}}, Heartbeat: time.Hour, Locale: "en_US", FrameSize: 131072})
	require.NoError(t, err)
	defer conn.Close()
	ch, err := conn.Channel()
	require.NoError(t, err)
	require.NoError(t, ch.Confirm(false))
	return testing.AllocsPerRun(1000, func() {
		msg := msg
		msg.Timestamp = time.Now()
		msg.MessageId = newMessageID(msg.Timestamp)
		confirm, err := ch.PublishWithDeferredConfirm("", "queue", true, false, msg)
		if err != nil || !confirm.Wait() {
			t.Fatal("not confirmed", err)
		}
	})
}

// publishAllocs returns what a publish allocates, and a message of a batch.
func publishAllocs(t *testing.T, cfg Config, ctx context.Context, msg amqp.Publishing) (one, batched float64) {
	cfg.Heartbeat = time.Hour
	cfg.DialContext = func(context.Context, string, string) (net.Conn, error) { return pipeToPeer(), nil }
	conn, _ := dialed(t, "amqp://guest:guest@127.0.0.1:1", cfg)
	p, err := conn.NewPublisher(PublisherConfig{})
	require.NoError(t, err)
	one = testing.AllocsPerRun(1000, func() {
		if err := p.Publish(ctx, "", "queue", msg); err != nil {
			t.Fatal(err)
		}
	})
	batch := make([]Message, 1000)
	for i := range batch {
		batch[i] = Message{Key: "queue", Publishing: msg}
	}
	batched = testing.AllocsPerRun(10, func() {
		if err := p.PublishBatch(ctx, batch); err != nil {
			t.Fatal(err)
		}
	}) / float64(len(batch))
	return one, batched
}

// pipeToPeer returns one end of a pipe whose other end confirms what is published on its one channel.
func pipeToPeer() net.Conn {
	var tag, left uint64 // of the messages; bytes that are still to come of one
	client, _ := peer.Pipe(func(p *peer.Peer, f peer.Frame) bool {
		switch f.Kind {
		case peer.Method:
			if f.Method() == [2]uint16{85, 10} { // confirm.select
				tag = 0
				return p.Send(f.Channel, 85, 11, nil)
			}
			return true
		case peer.Header:
			left = binary.BigEndian.Uint64(f.Payload[4:])
		case peer.Body:
			left -= uint64(len(f.Payload))
		default:
			return true // a heartbeat
		}
		if left > 0 {
			return true
		}
		tag++
		var ack [9]byte
		binary.BigEndian.PutUint64(ack[:], tag)
		return p.Send(f.Channel, 60, 80, ack[:])
	})
	return client
}
