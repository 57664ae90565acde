// Package peer is the broker's side of an AMQP connection without a broker, for tests that count what the driver and this
// module allocate or encode: it is exact, since once its buffers have grown it allocates nothing.
package peer

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"time"
)

// The kinds of frames.
const (
	Method = 1
	Header = 2
	Body   = 3
)

// Frame is what the client has sent. Its payload is valid until the next one.
type Frame struct {
	Kind    byte
	Channel uint16
	Payload []byte
}

// Method is class and method of a frame that is one.
func (f Frame) Method() [2]uint16 {
	if f.Kind != Method {
		return [2]uint16{}
	}
	return [2]uint16{binary.BigEndian.Uint16(f.Payload), binary.BigEndian.Uint16(f.Payload[2:])}
}

// Peer is one end of a pipe. Its methods are safe for concurrent use.
type Peer struct {
	conn net.Conn
	in   []byte

	writing sync.Mutex
	out     []byte
}

// Pipe returns the other end, for amqp.Open or as a socket. The peer opens and closes connection and channels as the client
// asks; handle sees each frame before that, answers what else there is, and hangs up by returning false. over is closed
// when the connection has ended.
func Pipe(handle func(*Peer, Frame) bool) (client net.Conn, over <-chan struct{}) {
	client, server := net.Pipe()
	p := &Peer{conn: server, in: make([]byte, 4096)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer server.Close()
		if _, err := io.ReadFull(server, p.in[:8]); err != nil { // the protocol header
			return
		}
		p.Send(0, 10, 10, start)
		for {
			f, err := p.read()
			if err != nil || !handle(p, f) || !p.answer(f) {
				return
			}
		}
	}()
	return undated{client}, ended
}

// start is the arguments of connection.start: version 0-9, no properties, PLAIN, en_US.
var start = append([]byte{0, 9, 0, 0, 0, 0}, "\x00\x00\x00\x05PLAIN\x00\x00\x00\x05en_US"...)

// undated has no deadlines: setting one of a pipe allocates, of a socket it does not.
type undated struct{ net.Conn }

func (undated) SetDeadline(time.Time) error      { return nil }
func (undated) SetReadDeadline(time.Time) error  { return nil }
func (undated) SetWriteDeadline(time.Time) error { return nil }

func (p *Peer) read() (f Frame, err error) {
	if _, err := io.ReadFull(p.conn, p.in[:7]); err != nil {
		return f, err
	}
	f.Kind, f.Channel = p.in[0], binary.BigEndian.Uint16(p.in[1:])
	size := int(binary.BigEndian.Uint32(p.in[3:]))
	if len(p.in) <= size {
		p.in = make([]byte, size+1)
	}
	_, err = io.ReadFull(p.conn, p.in[:size+1])
	f.Payload = p.in[:size]
	return f, err
}

// answer reports whether the connection goes on.
func (p *Peer) answer(f Frame) bool {
	switch f.Method() {
	case [2]uint16{10, 11}: // start-ok: tune, to 2,047 channels, frames of 128 KiB, an hour between heartbeats
		return p.Send(0, 10, 30, []byte{7, 255, 0, 2, 0, 0, 0x0e, 0x10})
	case [2]uint16{10, 40}: // open
		return p.Send(0, 10, 41, []byte{0})
	case [2]uint16{10, 50}: // close
		p.Send(0, 10, 51, nil)
		return false
	case [2]uint16{20, 10}: // channel.open
		return p.Send(f.Channel, 20, 11, []byte{0, 0, 0, 0})
	case [2]uint16{20, 40}: // channel.close
		return p.Send(f.Channel, 20, 41, nil)
	}
	return true
}

// Send writes a method frame. It reports whether the client has taken it.
func (p *Peer) Send(channel, class, id uint16, args []byte) bool {
	p.writing.Lock()
	defer p.writing.Unlock()
	p.out = append(p.out[:0], Method)
	p.out = binary.BigEndian.AppendUint16(p.out, channel)
	p.out = binary.BigEndian.AppendUint32(p.out, uint32(4+len(args)))
	p.out = binary.BigEndian.AppendUint16(p.out, class)
	p.out = binary.BigEndian.AppendUint16(p.out, id)
	p.out = append(append(p.out, args...), 0xce)
	_, err := p.conn.Write(p.out)
	return err == nil
}

// SendFrames writes whole frames. It reports whether the client has taken them.
func (p *Peer) SendFrames(frames []byte) bool {
	p.writing.Lock()
	defer p.writing.Unlock()
	_, err := p.conn.Write(frames)
	return err == nil
}
