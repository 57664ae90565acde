package reconnect

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/trace"
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

// pipeToPeer returns one end of a pipe whose other end speaks enough AMQP to confirm what is published.
func pipeToPeer() net.Conn { return pipeTo(&confirmingPeer{}) }

func pipeTo(p *confirmingPeer) net.Conn {
	client, server := net.Pipe()
	p.conn = server
	go func() {
		defer server.Close()
		var preface [8]byte
		if _, err := io.ReadFull(server, preface[:]); err != nil {
			return
		}
		p.send(0, 10, 10, start())
		for p.step() {
		}
	}()
	return undated{client}
}

// undated has no deadlines: setting one of a pipe allocates, of a socket it does not.
type undated struct{ net.Conn }

func (undated) SetDeadline(time.Time) error      { return nil }
func (undated) SetReadDeadline(time.Time) error  { return nil }
func (undated) SetWriteDeadline(time.Time) error { return nil }

// confirmingPeer is the broker's side of a connection. Once it is set up it allocates nothing.
type confirmingPeer struct {
	conn    net.Conn
	in, out [4096]byte
	tag     uint64
	body    uint64 // bytes that are still to come of the message
	rude    bool   // answers connection.close by hanging up
}

// step takes one frame and answers it; it reports whether another will come.
func (p *confirmingPeer) step() bool {
	if _, err := io.ReadFull(p.conn, p.in[:7]); err != nil {
		return false
	}
	kind, channel, size := p.in[0], binary.BigEndian.Uint16(p.in[1:]), binary.BigEndian.Uint32(p.in[3:])
	frame := p.in[:size+1]
	if _, err := io.ReadFull(p.conn, frame); err != nil {
		return false
	}
	switch kind {
	case 1:
		return p.method(channel, binary.BigEndian.Uint16(frame), binary.BigEndian.Uint16(frame[2:]))
	case 2:
		p.body = binary.BigEndian.Uint64(frame[4:])
	case 3:
		p.body -= uint64(size)
	default:
		return true // a heartbeat
	}
	if p.body > 0 {
		return true
	}
	p.tag++
	var ack [9]byte
	binary.BigEndian.PutUint64(ack[:], p.tag)
	return p.send(channel, 60, 80, ack[:])
}

func (p *confirmingPeer) method(channel, class, id uint16) bool {
	switch [2]uint16{class, id} {
	case [2]uint16{10, 11}: // start-ok: tune
		return p.send(0, 10, 30, []byte{7, 255, 0, 2, 0, 0, 0x0e, 0x10})
	case [2]uint16{10, 40}: // open
		return p.send(0, 10, 41, []byte{0})
	case [2]uint16{10, 50}: // close
		if !p.rude {
			p.send(0, 10, 51, nil)
		}
		return false
	case [2]uint16{20, 10}: // channel.open
		return p.send(channel, 20, 11, []byte{0, 0, 0, 0})
	case [2]uint16{20, 40}:
		return p.send(channel, 20, 41, nil)
	case [2]uint16{85, 10}: // confirm.select
		p.tag = 0
		return p.send(channel, 85, 11, nil)
	}
	return true // tune-ok, publish
}

// send writes a method frame.
func (p *confirmingPeer) send(channel, class, id uint16, args []byte) bool {
	out := append(p.out[:0], 1)
	out = binary.BigEndian.AppendUint16(out, channel)
	out = binary.BigEndian.AppendUint32(out, uint32(4+len(args)))
	out = binary.BigEndian.AppendUint16(out, class)
	out = binary.BigEndian.AppendUint16(out, id)
	out = append(append(out, args...), 0xce)
	_, err := p.conn.Write(out)
	return err == nil
}

// start is the arguments of connection.start: version 0-9, no properties, PLAIN, en_US.
func start() []byte {
	var b bytes.Buffer
	b.Write([]byte{0, 9, 0, 0, 0, 0})
	for _, s := range []string{"PLAIN", "en_US"} {
		b.Write(binary.BigEndian.AppendUint32(nil, uint32(len(s))))
		b.WriteString(s)
	}
	return b.Bytes()
}
