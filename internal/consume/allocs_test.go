package consume

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"github.com/warrenmq/warren/internal/testenv"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
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
	conn, peer := openPeer(t, headers)
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
	return measure(peer, func() { take(scripted - scripted/10) })
}

// deliverLoop returns what a message costs a Loop with prefetch 100.
func deliverLoop(t *testing.T, headers amqp.Table, cfg Config) delivered {
	conn, peer := openPeer(t, headers)
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
	cost := measure(peer, func() {
		close(goOn)
		waitFor(t, "last message", done)
	})
	require.NoError(t, l.stop())
	return cost
}

// openPeer returns a connection to a broker that has so many messages with these headers in every queue.
func openPeer(t *testing.T, headers amqp.Table) (*amqp.Connection, *deliveringPeer) {
	client, server := net.Pipe()
	p := &deliveringPeer{conn: server, headers: headers}
	p.acked.L = &p.mu
	go func() {
		defer server.Close()
		var preface [8]byte
		if _, err := io.ReadFull(server, preface[:]); err != nil {
			return
		}
		p.send(0, 10, 10, startArgs())
		for p.step() {
		}
		p.mu.Lock()
		p.over = true
		p.mu.Unlock()
		p.acked.Broadcast()
	}()
	conn, err := amqp.Open(undated{client}, amqp.Config{SASL: []amqp.Authentication{&amqp.PlainAuth{}}, Heartbeat: time.Hour, Locale: "en_US", FrameSize: 131072})
	require.NoError(t, err)
	return conn, p
}

// undated has no deadlines: setting one of a pipe allocates, of a socket it does not.
type undated struct{ net.Conn }

func (undated) SetDeadline(time.Time) error      { return nil }
func (undated) SetReadDeadline(time.Time) error  { return nil }
func (undated) SetWriteDeadline(time.Time) error { return nil }

// deliveringPeer is the broker's side of a connection. Once it is set up it allocates nothing.
type deliveringPeer struct {
	conn    net.Conn
	in      [4096]byte
	headers amqp.Table

	writing sync.Mutex
	out     [4096]byte

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
func (p *deliveringPeer) deliver(consumer string, noAck bool) {
	frames, tagAt := message(p.headers, consumer)
	for tag := uint64(1); tag <= scripted; tag++ {
		p.mu.Lock()
		for !noAck && !p.over && tag > p.done+uint64(p.prefetch.Load()) {
			p.acked.Wait()
		}
		over := p.over
		p.mu.Unlock()
		if over {
			return
		}
		p.writing.Lock()
		binary.BigEndian.PutUint64(frames[tagAt:], tag)
		_, err := p.conn.Write(frames)
		p.writing.Unlock()
		if err != nil {
			return
		}
	}
}

// step takes one frame and answers it; it reports whether another will come.
func (p *deliveringPeer) step() bool {
	if _, err := io.ReadFull(p.conn, p.in[:7]); err != nil {
		return false
	}
	kind, channel, size := p.in[0], binary.BigEndian.Uint16(p.in[1:]), binary.BigEndian.Uint32(p.in[3:])
	frame := p.in[:size+1]
	if _, err := io.ReadFull(p.conn, frame); err != nil {
		return false
	}
	if kind != 1 {
		return true // a heartbeat
	}
	args := frame[4:]
	switch [2]uint16{binary.BigEndian.Uint16(frame), binary.BigEndian.Uint16(frame[2:])} {
	case [2]uint16{10, 11}: // start-ok: tune
		return p.send(0, 10, 30, []byte{7, 255, 0, 2, 0, 0, 0x0e, 0x10})
	case [2]uint16{10, 40}: // open
		return p.send(0, 10, 41, []byte{0})
	case [2]uint16{10, 50}: // close
		p.send(0, 10, 51, nil)
		return false
	case [2]uint16{20, 10}: // channel.open
		return p.send(channel, 20, 11, []byte{0, 0, 0, 0})
	case [2]uint16{20, 40}:
		return p.send(channel, 20, 41, nil)
	case [2]uint16{60, 10}: // qos
		p.prefetch.Store(uint32(binary.BigEndian.Uint16(args[4:])))
		return p.send(channel, 60, 11, nil)
	case [2]uint16{60, 20}: // consume: ticket, queue, tag, flags
		rest := args[2+1+int(args[2]):]
		consumer, flags := string(rest[1:1+int(rest[0])]), rest[1+int(rest[0])]
		ok := p.send(channel, 60, 21, rest[:1+len(consumer)])
		go p.deliver(consumer, flags&2 != 0)
		return ok
	case [2]uint16{60, 30}: // cancel
		return p.send(channel, 60, 31, args[:1+int(args[0])])
	case [2]uint16{60, 80}: // ack
		p.acks.Add(1)
		p.mu.Lock()
		p.done = max(p.done, binary.BigEndian.Uint64(args))
		p.mu.Unlock()
		p.acked.Broadcast()
	}
	return true
}

// send writes a method frame.
func (p *deliveringPeer) send(channel, class, id uint16, args []byte) bool {
	p.writing.Lock()
	defer p.writing.Unlock()
	out := append(p.out[:0], 1)
	out = binary.BigEndian.AppendUint16(out, channel)
	out = binary.BigEndian.AppendUint32(out, uint32(4+len(args)))
	out = binary.BigEndian.AppendUint16(out, class)
	out = binary.BigEndian.AppendUint16(out, id)
	out = append(append(out, args...), 0xce)
	_, err := p.conn.Write(out)
	return err == nil
}

// startArgs is the arguments of connection.start: version 0-9, no properties, PLAIN, en_US.
func startArgs() []byte {
	b := []byte{0, 9, 0, 0, 0, 0}
	for _, s := range []string{"PLAIN", "en_US"} {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...)
	}
	return b
}
