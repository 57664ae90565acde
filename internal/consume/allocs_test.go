package consume

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/internal/testenv/peer"
)

const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// Against a peer that allocates nothing, a message that a handler takes costs at most two allocations more than the driver's own
// delivery, the shares of the acknowledgement included; with a trace context in it and a propagator, twelve. Without a
// propagator the header costs nothing that it does not cost the driver. A busy machine gathers fewer acknowledgements in
// their millisecond: what more of them cost is taken off.
func TestConsumeAllocations(t *testing.T) {
	plain, traced := amqp.Table(nil), amqp.Table{"traceparent": traceparent}
	raw, rawTraced := deliverRaw(t, plain, gathered), deliverRaw(t, traced, gathered)
	often := deliverRaw(t, plain, gathered/5)
	perAck := (often.allocs - raw.allocs) / (often.acks - raw.acks)
	of := func(d delivered) float64 { return d.allocs - perAck*max(0, d.acks-raw.acks) }
	ours := of(deliverLoop(t, plain, Config{}))
	unread := of(deliverLoop(t, traced, Config{}))
	read := of(deliverLoop(t, traced, Config{Propagator: propagation.TraceContext{}}))
	t.Logf("raw %.2f, ours %.2f; with a trace context raw %.2f, ours %.2f, read by a propagator %.2f; an acknowledgement %.1f",
		raw.allocs, ours, rawTraced.allocs, unread, read, perAck)
	require.InDelta(t, 10, perAck, 5)
	require.LessOrEqual(t, ours, raw.allocs+2)
	require.LessOrEqual(t, unread, rawTraced.allocs+2)
	require.InDelta(t, ours-raw.allocs, unread-rawTraced.allocs, 0.6) // less than one
	require.LessOrEqual(t, read, rawTraced.allocs+12)
}

const (
	scripted = 20_000 // messages
	gathered = 25     // of them for an acknowledgement, of prefetch 100
)

// delivered is what a message cost.
type delivered struct{ allocs, acks float64 }

// measure returns what a message costs while fn takes those after the first tenth.
func measure(p *deliveringPeer, fn func()) delivered {
	const n = scripted - scripted/10
	runtime.GC()
	var before, after runtime.MemStats
	acks := p.acks.Load()
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return delivered{float64(after.Mallocs-before.Mallocs) / n, float64(p.acks.Load()-acks) / n}
}

// deliverRaw returns what a delivery costs the driver used well: prefetch 100, and several messages acknowledged at once.
func deliverRaw(t *testing.T, headers amqp.Table, together int) delivered {
	conn, from := openPeer(t, headers)
	defer conn.Close()
	ch, err := conn.Channel()
	require.NoError(t, err)
	require.NoError(t, ch.Qos(100, 0, false))
	in, err := ch.Consume("q", "raw", false, false, false, false, nil)
	require.NoError(t, err)
	take := func(n int) {
		for i := range n {
			if d := <-in; i%together == together-1 {
				_ = d.Ack(true)
			}
		}
	}
	take(scripted / 10)
	return measure(from, func() { take(scripted - scripted/10) })
}

// deliverLoop returns what a message costs a Loop with prefetch 100.
func deliverLoop(t *testing.T, headers amqp.Table, cfg Config) delivered {
	conn, from := openPeer(t, headers)
	defer conn.Close()
	var n int
	warm, goOn, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	cfg.Name, cfg.Queue, cfg.Prefetch = "worker", "q", 100
	cfg.Logger = testenv.Logger(io.Discard)
	cfg.Handler = func(ctx context.Context, d amqp.Delivery) error {
		if traced := trace.SpanContextFromContext(ctx).IsValid(); traced != (cfg.Propagator != nil) {
			t.Error("in a trace:", traced)
		}
		switch n++; n {
		case scripted / 10:
			close(warm)
			<-goOn
		case scripted:
			close(done)
		}
		return nil
	}
	cfg.Supervise = func(ctx context.Context, _ string, fn func(context.Context, *amqp.Channel) error) error {
		ch, err := conn.Channel()
		if err != nil {
			return err
		}
		return fn(ctx, ch)
	}
	l := start(t, cfg)
	waitFor(t, "warm", warm)
	cost := measure(from, func() {
		close(goOn)
		waitFor(t, "last message", done)
	})
	require.NoError(t, l.stop())
	return cost
}

// openPeer returns a connection to a broker that has so many messages with these headers in every queue.
func openPeer(t *testing.T, headers amqp.Table) (*amqp.Connection, *deliveringPeer) {
	d := &deliveringPeer{headers: headers}
	d.acked.L = &d.mu
	client, over := peer.Pipe(d.handle)
	go func() {
		<-over
		d.mu.Lock()
		d.over = true
		d.mu.Unlock()
		d.acked.Broadcast()
	}()
	conn, err := amqp.Open(client, amqp.Config{SASL: []amqp.Authentication{&amqp.PlainAuth{}}, Heartbeat: time.Hour, Locale: "en_US", FrameSize: 131072})
	require.NoError(t, err)
	return conn, d
}

// deliveringPeer delivers, as the prefetch and acknowledgements let it.
type deliveringPeer struct {
	headers  amqp.Table
	prefetch atomic.Uint32
	acks     atomic.Int64

	mu    sync.Mutex
	acked sync.Cond
	done  uint64 // highest tag acknowledged
	over  bool
}

// message is the three frames of a delivery on channel 1 to a consumer, and where in them the delivery tag is.
func message(headers amqp.Table, consumer string) (frames []byte, tagAt int) {
	body := []byte("hello")
	var method, header bytes.Buffer
	method.Write([]byte{0, 60, 0, 60, byte(len(consumer))})
	method.WriteString(consumer)
	tagAt = 7 + method.Len()
	method.Write([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 'q'}) // tag, not redelivered, no exchange, key
	header.Write([]byte{0, 60, 0, 0})
	header.Write(binary.BigEndian.AppendUint64(nil, uint64(len(body))))
	var flags uint16
	var table bytes.Buffer
	for name, value := range headers {
		table.WriteByte(byte(len(name)))
		table.WriteString(name)
		table.WriteByte('S')
		table.Write(binary.BigEndian.AppendUint32(nil, uint32(len(value.(string)))))
		table.WriteString(value.(string))
		flags = 0x2000
	}
	header.Write(binary.BigEndian.AppendUint16(nil, flags))
	if flags != 0 {
		header.Write(binary.BigEndian.AppendUint32(nil, uint32(table.Len())))
		header.Write(table.Bytes())
	}
	for kind, payload := range [][]byte{method.Bytes(), header.Bytes(), body} {
		frames = append(frames, byte(kind+1), 0, 1)
		frames = binary.BigEndian.AppendUint32(frames, uint32(len(payload)))
		frames = append(append(frames, payload...), 0xce)
	}
	return frames, tagAt
}

// deliver sends the messages, as many at a time as the prefetch says.
func (d *deliveringPeer) deliver(p *peer.Peer, consumer string, noAck bool) {
	frames, tagAt := message(d.headers, consumer)
	for tag := uint64(1); tag <= scripted; tag++ {
		d.mu.Lock()
		for !noAck && !d.over && tag > d.done+uint64(d.prefetch.Load()) {
			d.acked.Wait()
		}
		over := d.over
		d.mu.Unlock()
		binary.BigEndian.PutUint64(frames[tagAt:], tag)
		if over || !p.SendFrames(frames) {
			return
		}
	}
}

func (d *deliveringPeer) handle(p *peer.Peer, f peer.Frame) bool {
	if f.Kind != peer.Method {
		return true
	}
	args := f.Payload[4:]
	switch f.Method() {
	case [2]uint16{60, 10}: // qos
		d.prefetch.Store(uint32(binary.BigEndian.Uint16(args[4:])))
		return p.Send(f.Channel, 60, 11, nil)
	case [2]uint16{60, 20}: // consume: ticket, queue, tag, flags
		rest := args[2+1+int(args[2]):]
		consumer, flags := string(rest[1:1+int(rest[0])]), rest[1+int(rest[0])]
		ok := p.Send(f.Channel, 60, 21, rest[:1+len(consumer)])
		go d.deliver(p, consumer, flags&2 != 0)
		return ok
	case [2]uint16{60, 30}: // cancel
		return p.Send(f.Channel, 60, 31, args[:1+int(args[0])])
	case [2]uint16{60, 80}: // ack
		d.acks.Add(1)
		d.mu.Lock()
		d.done = max(d.done, binary.BigEndian.Uint64(args))
		d.mu.Unlock()
		d.acked.Broadcast()
	}
	return true
}
