package rawamqp

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/apart"
)

// Conn is a connection with one channel. It is used by one goroutine. A refusal by the broker is an *amqp.Error, after which
// only Close is of use.
type Conn struct {
	sock net.Conn
	in   *bufio.Reader
	stop func() bool
}

// heartbeat, in seconds, is asked of the broker. None is sent: a connection that does nothing for so long ends.
const heartbeat = 30

// Open takes over a socket and completes the handshake. Everything on the connection ends with ctx. The socket is closed when
// it fails.
func Open(ctx context.Context, s apart.Socket, name string) (*Conn, error) {
	c := &Conn{sock: s.Conn, in: bufio.NewReaderSize(s.Conn, 64<<10)}
	c.stop = context.AfterFunc(ctx, func() { _ = c.sock.SetDeadline(time.Unix(1, 0)) })
	if err := c.handshake(s, name); err != nil {
		c.stop()
		_ = c.sock.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("handshake: %w", err)
	}
	return c, nil
}

func (c *Conn) handshake(s apart.Socket, name string) error {
	if _, err := c.sock.Write([]byte("AMQP\x00\x00\x09\x01")); err != nil {
		return err
	}
	if _, err := c.await(connectionStart); err != nil {
		return err
	}
	capabilities := writer(nil).short("authentication_failure_close").u8('t').u8(1)
	properties := writer(nil).text("product", "warren").text("connection_name", name).table(writer("capabilities"), capabilities)
	tune, err := c.ask(method(connectionStartOK).long(string(properties)).short(s.Auth.Mechanism()).long(s.Auth.Response()).short("en_US").on(0),
		connectionTune)
	if err != nil {
		return err
	}
	channels, frameMax := tune.u16(), tune.u32()
	if err := c.send(method(connectionTuneOK).u16(channels).u32(frameMax).u16(heartbeat).on(0)); err != nil {
		return err
	}
	if _, err := c.ask(method(connectionOpen).short(s.Vhost).short("").u8(0).on(0), connectionOpenOK); err != nil {
		return err
	}
	_, err = c.ask(method(channelOpen).short("").on(channel), channelOpenOK)
	return err
}

// Get takes the message at the head of a queue, to be settled; nil when there is none.
func (c *Conn) Get(queue string) (*Message, error) {
	f, err := c.request(method(basicGet).u16(0).short(queue).u8(0).on(channel), basicGetOK, basicGetEmpty)
	if err != nil || f.method() == basicGetEmpty {
		return nil, err
	}
	m := &Message{frames: []frame{f}}
	header, err := c.next()
	if err != nil {
		return nil, err
	}
	if header.kind != frameHeader {
		return nil, fmt.Errorf("rawamqp: a frame of type %d instead of a header", header.kind)
	}
	m.frames = append(m.frames, header)
	m.parse()
	for got := uint64(0); got < m.Size; {
		body, err := c.next()
		if err != nil {
			return nil, err
		}
		if body.kind != frameBody {
			return nil, fmt.Errorf("rawamqp: a frame of type %d instead of a body", body.kind)
		}
		m.frames = append(m.frames, body)
		got += uint64(len(body.payload))
	}
	return m, nil
}

// Ack takes a message off its queue.
func (c *Conn) Ack(m *Message) error { return c.send(method(basicAck).u64(m.tag).u8(0).on(channel)) }

// Return gives a message back.
func (c *Conn) Return(m *Message) error {
	return c.send(method(basicNack).u64(m.tag).u8(2).on(channel)) // not multiple, requeue
}

// Ready is the number of messages that wait in a queue. The broker answers when it has taken in what it was told before.
func (c *Conn) Ready(queue string) (int, error) {
	r, err := c.ask(method(queueDeclare).u16(0).short(queue).u8(1).u32(0).on(channel), queueDeclareOK)
	if err != nil {
		return 0, err
	}
	r.short()
	return int(r.u32()), nil
}

// Close ends the connection. What is not settled goes back. An error says that the broker has not answered, so that what it
// was told last may not be done.
func (c *Conn) Close() error {
	_, err := c.ask(method(channelClose).u16(200).short("").u32(0).on(channel), channelCloseOK)
	if err == nil {
		_, err = c.ask(method(connectionClose).u16(200).short("").u32(0).on(0), connectionCloseOK)
	}
	c.stop()
	_ = c.sock.Close()
	return err
}

func (c *Conn) send(f frame) error {
	_, err := c.sock.Write(f.bytes())
	return err
}

// request sends f and returns the answer, one of those named.
func (c *Conn) request(f frame, answers ...uint32) (frame, error) {
	if err := c.send(f); err != nil {
		return frame{}, err
	}
	return c.await(answers...)
}

// ask is request for the one answer, of which it returns the arguments.
func (c *Conn) ask(f frame, answer uint32) (*reader, error) {
	got, err := c.request(f, answer)
	if err != nil {
		return nil, err
	}
	return &reader{b: got.payload[4:]}, nil
}

func (c *Conn) await(answers ...uint32) (frame, error) {
	f, err := c.next()
	if err != nil {
		return frame{}, err
	}
	for _, id := range answers {
		if f.method() == id {
			return f, nil
		}
	}
	return frame{}, fmt.Errorf("rawamqp: method %d.%d came, not what was asked for", f.method()>>16, f.method()&0xffff)
}

// next returns the next frame that is not a heartbeat; a close is an error.
func (c *Conn) next() (frame, error) {
	for {
		f, err := readFrame(c.in)
		if err != nil {
			return frame{}, err
		}
		switch {
		case f.kind == frameHeartbeat:
			continue
		case f.method() == connectionClose, f.method() == channelClose:
			r := &reader{b: f.payload[4:]}
			code := int(r.u16())
			return frame{}, &amqp.Error{Code: code, Reason: r.short(), Server: true}
		}
		return f, nil
	}
}
