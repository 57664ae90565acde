package rawamqp

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// judgeWithin bounds what happens in memory alone.
const judgeWithin = 30 * time.Second

// Judge returns nil when the driver can read m, else what it says about it: it is handed the message's frames by a broker that
// has nothing else, and whose connection has the frame_max of RabbitMQ.
func Judge(ctx context.Context, m *Message) error {
	ctx, cancel := context.WithTimeout(ctx, judgeWithin)
	defer cancel()
	ours, drivers := net.Pipe()
	stop := context.AfterFunc(ctx, func() { _, _ = ours.Close(), drivers.Close() })
	defer stop()
	served := make(chan struct{})
	go func() { defer close(served); serve(ours, m) }()
	err := get(drivers)
	_, _ = ours.Close(), drivers.Close()
	<-served
	if ctx.Err() != nil {
		return &Undecided{context.Cause(ctx)}
	}
	return err
}

// Undecided is why Judge came to no conclusion.
type Undecided struct{ err error }

func (e *Undecided) Error() string { return "not decided: " + e.err.Error() }
func (e *Undecided) Unwrap() error { return e.err }

// get has the driver read the message.
func get(nc net.Conn) error {
	conn, err := amqp.Open(nc, amqp.Config{SASL: []amqp.Authentication{&amqp.PlainAuth{}}, FrameSize: frameMax, Heartbeat: time.Hour, Locale: "en_US"})
	if err != nil {
		return &Undecided{err}
	}
	closed := conn.NotifyClose(make(chan *amqp.Error, 1))
	ch, err := conn.Channel()
	if err != nil {
		return &Undecided{err}
	}
	_, ok, err := ch.Get("", true)
	switch {
	case ok && err == nil:
		return nil
	case err == nil:
		return &Undecided{errors.New("no message")}
	}
	if why := <-closed; why != nil {
		return why
	}
	return err
}

// frameMax is what RabbitMQ and the driver agree on.
const frameMax = 131072

// serve is the broker's side of it.
func serve(nc net.Conn, m *Message) {
	in := bufio.NewReader(nc)
	var greeting [8]byte
	if _, err := io.ReadFull(in, greeting[:]); err != nil {
		return
	}
	answer := method(connectionStart).u8(0).u8(9).u32(0).long("PLAIN").long("en_US").on(0)
	for {
		if _, err := nc.Write(answer.bytes()); err != nil {
			return
		}
		f, err := readFrame(in)
		for err == nil && (f.kind == frameHeartbeat || f.method() == connectionTuneOK) {
			f, err = readFrame(in)
		}
		if err != nil {
			return
		}
		switch f.method() {
		case connectionStartOK:
			answer = method(connectionTune).u16(0).u32(frameMax).u16(0).on(0)
		case connectionOpen:
			answer = method(connectionOpenOK).short("").on(0)
		case channelOpen:
			answer = method(channelOpenOK).u32(0).on(channel)
		case basicGet:
			for _, f := range m.frames {
				if _, err := nc.Write(f.bytes()); err != nil {
					return
				}
			}
			answer = frame{kind: frameHeartbeat}
		default:
			return
		}
	}
}
