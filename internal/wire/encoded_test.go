package wire

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv/peer"
)

// driver is a channel of amqp091-go, and the size of each content header that it has encoded.
type driver struct {
	channel *amqp.Channel
	headers <-chan int
}

// newDriver returns a driver that lives until the end of tb.
func newDriver(tb testing.TB) *driver {
	tb.Helper()
	headers := make(chan int, 1)
	client, over := peer.Pipe(func(_ *peer.Peer, f peer.Frame) bool {
		if f.Kind == peer.Header {
			headers <- len(f.Payload)
		}
		return true
	})
	conn, err := amqp.Open(client, amqp.Config{SASL: []amqp.Authentication{&amqp.PlainAuth{Username: "u", Password: "p"}}})
	require.NoError(tb, err)
	tb.Cleanup(func() {
		_ = conn.Close()
		<-over
	})
	channel, err := conn.Channel()
	require.NoError(tb, err)
	return &driver{channel, headers}
}

// encoded publishes msg and returns the size of its content header.
func (d *driver) encoded(tb testing.TB, exchange, key string, msg amqp.Publishing) int {
	tb.Helper()
	require.NoError(tb, d.channel.PublishWithContext(tb.Context(), exchange, key, true, false, msg))
	return <-d.headers
}
