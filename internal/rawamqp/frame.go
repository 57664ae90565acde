package rawamqp

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
)

// Types of frames.
const (
	frameMethod    = 1
	frameHeader    = 2
	frameBody      = 3
	frameHeartbeat = 8
	frameEnd       = 0xCE
)

// maxFrame bounds what is read as one frame: far above every frame_max, and what headers can grow to.
const maxFrame = 64 << 20

// channel is the only one used, but for 0.
const channel = 1

// Methods, class and method number.
const (
	connectionStart   = 10<<16 | 10
	connectionStartOK = 10<<16 | 11
	connectionTune    = 10<<16 | 30
	connectionTuneOK  = 10<<16 | 31
	connectionOpen    = 10<<16 | 40
	connectionOpenOK  = 10<<16 | 41
	connectionClose   = 10<<16 | 50
	connectionCloseOK = 10<<16 | 51
	channelOpen       = 20<<16 | 10
	channelOpenOK     = 20<<16 | 11
	channelClose      = 20<<16 | 40
	channelCloseOK    = 20<<16 | 41
	queueDeclare      = 50<<16 | 10
	queueDeclareOK    = 50<<16 | 11
	basicGet          = 60<<16 | 70
	basicGetOK        = 60<<16 | 71
	basicGetEmpty     = 60<<16 | 72
	basicAck          = 60<<16 | 80
	basicNack         = 60<<16 | 120
)

type frame struct {
	kind    byte
	channel uint16
	payload []byte
}

func readFrame(r *bufio.Reader) (frame, error) {
	var head [7]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return frame{}, err
	}
	f := frame{kind: head[0], channel: binary.BigEndian.Uint16(head[1:])}
	size := binary.BigEndian.Uint32(head[3:])
	if size > maxFrame {
		return frame{}, fmt.Errorf("rawamqp: a frame of %d bytes", size)
	}
	f.payload = make([]byte, size+1)
	if _, err := io.ReadFull(r, f.payload); err != nil {
		return frame{}, err
	}
	if f.payload[size] != frameEnd {
		return frame{}, fmt.Errorf("rawamqp: a frame that ends with %#x", f.payload[size])
	}
	f.payload = f.payload[:size]
	return f, nil
}

// bytes is the frame as it is sent.
func (f frame) bytes() []byte {
	out := make([]byte, 0, len(f.payload)+8)
	out = append(out, f.kind)
	out = binary.BigEndian.AppendUint16(out, f.channel)
	out = binary.BigEndian.AppendUint32(out, uint32(len(f.payload)))
	out = append(out, f.payload...)
	return append(out, frameEnd)
}

// method returns which method a frame is; 0: none.
func (f frame) method() uint32 {
	if f.kind != frameMethod || len(f.payload) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(f.payload)
}

// writer builds the payload of a method.
type writer []byte

func method(id uint32) writer                { return binary.BigEndian.AppendUint32(nil, id) }
func (w writer) u8(v uint8) writer           { return append(w, v) }
func (w writer) u16(v uint16) writer         { return binary.BigEndian.AppendUint16(w, v) }
func (w writer) u32(v uint32) writer         { return binary.BigEndian.AppendUint32(w, v) }
func (w writer) u64(v uint64) writer         { return binary.BigEndian.AppendUint64(w, v) }
func (w writer) short(s string) writer       { return append(w.u8(uint8(len(s))), s...) }
func (w writer) long(s string) writer        { return append(w.u32(uint32(len(s))), s...) }
func (w writer) on(ch uint16) frame          { return frame{frameMethod, ch, w} }
func (w writer) text(name, v string) writer  { return w.short(name).u8('S').long(v) }
func (w writer) table(name, v writer) writer { return w.short(string(name)).u8('F').long(string(v)) }

// reader takes a payload apart. What is not there is zero, and bad is set.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.b, r.bad = nil, true
		return make([]byte, 8)[:min(max(n, 0), 8)]
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) u8() uint8   { return r.take(1)[0] }
func (r *reader) u16() uint16 { return binary.BigEndian.Uint16(r.take(2)) }
func (r *reader) u32() uint32 { return binary.BigEndian.Uint32(r.take(4)) }
func (r *reader) u64() uint64 { return binary.BigEndian.Uint64(r.take(8)) }

func (r *reader) short() string { return r.text(int(r.u8())) }

func (r *reader) text(n int) string {
	if n > len(r.b) {
		r.b, r.bad = nil, true
		return ""
	}
	return string(r.take(n))
}
