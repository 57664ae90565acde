package wire

import (
	"encoding/binary"
	"io"
	"net"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// peer is the other end of a connection of amqp091-go: it takes the handshake and one channel, and tells the size of
// each content header that the driver has encoded.
type peer struct {
	channel *amqp.Channel
	headers <-chan int
}

// newPeer returns a peer that lives until the end of tb.
func newPeer(tb testing.TB) *peer {
	tb.Helper()
	near, far := net.Pipe()
	headers := make(chan int, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(headers)
		defer far.Close()
		_ = serve(far, headers)
	}()
	conn, err := amqp.Open(near, amqp.Config{SASL: []amqp.Authentication{&amqp.PlainAuth{Username: "u", Password: "p"}}})
	require.NoError(tb, err)
	tb.Cleanup(func() {
		_ = conn.Close()
		<-done
	})
	channel, err := conn.Channel()
	require.NoError(tb, err)
	return &peer{channel, headers}
}

// encoded publishes msg and returns the size of its content header.
func (p *peer) encoded(tb testing.TB, exchange, key string, msg amqp.Publishing) int {
	tb.Helper()
	require.NoError(tb, p.channel.PublishWithContext(tb.Context(), exchange, key, true, false, msg))
	return <-p.headers
}

const (
	methodFrame = 1
	headerFrame = 2
)

// replies are what the peer answers to the methods of the driver, by class and method.
var replies = map[[2]uint16][]byte{
	{10, 11}: {0, 10, 0, 30, 0, 0, 0, 2, 0, 0, 0, 0}, // start-ok: tune, frame max 128 KiB
	{10, 40}: {0, 10, 0, 41, 0},                      // open: open-ok
	{20, 10}: {0, 20, 0, 11, 0, 0, 0, 0},             // channel.open: open-ok
	{10, 50}: {0, 10, 0, 51},                         // close: close-ok
}

// start is connection.start: version 0-9, no properties, mechanism PLAIN, locale en_US.
var start = append([]byte{0, 10, 0, 10, 0, 9, 0, 0, 0, 0},
	"\x00\x00\x00\x05PLAIN\x00\x00\x00\x05en_US"...)

func serve(nc net.Conn, headers chan<- int) error {
	if _, err := io.ReadFull(nc, make([]byte, 8)); err != nil { // the protocol header
		return err
	}
	if err := send(nc, 0, start); err != nil {
		return err
	}
	for {
		kind, channel, payload, err := receive(nc)
		if err != nil {
			return err
		}
		switch kind {
		case headerFrame:
			headers <- len(payload)
		case methodFrame:
			method := [2]uint16{binary.BigEndian.Uint16(payload), binary.BigEndian.Uint16(payload[2:])}
			if reply, ok := replies[method]; ok {
				if err := send(nc, channel, reply); err != nil {
					return err
				}
			}
		}
	}
}

func send(w io.Writer, channel uint16, payload []byte) error {
	b := []byte{methodFrame}
	b = binary.BigEndian.AppendUint16(b, channel)
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
	_, err := w.Write(append(append(b, payload...), 0xCE))
	return err
}

func receive(r io.Reader) (kind byte, channel uint16, payload []byte, err error) {
	head := make([]byte, 7)
	if _, err = io.ReadFull(r, head); err != nil {
		return 0, 0, nil, err
	}
	payload = make([]byte, binary.BigEndian.Uint32(head[3:])+1)
	_, err = io.ReadFull(r, payload)
	return head[0], binary.BigEndian.Uint16(head[1:]), payload[:len(payload)-1], err
}
