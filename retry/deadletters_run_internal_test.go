package retry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
)

// The first sign of a lost connection may come before its channel knows: the driver marks the connection first, and a write fails before
// that. It is no reason to end a call that goes on through losses. What somebody else's connection says, is.
func TestFirstSignOfALoss(t *testing.T) {
	t.Parallel()
	broker := testenv.Shared(t)
	for name, tt := range map[string]struct {
		err  error
		lost bool
	}{
		"the connection is closed": {fmt.Errorf("of a call: %w", amqp.ErrClosed), true},
		"a write fails":            {&net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}, true},
		"closed is another one":    {amqp.ErrClosed, false},
		"refused":                  {reconnect.ErrRefused, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := reconnect.Dial(t.Context(), "amqp://127.0.0.1:1/", reconnect.Config{Lazy: true, Logger: testenv.Logger(io.Discard)})
			require.NoError(t, err)
			defer conn.Close(context.Background())
			link := broker.Dial(t)
			ch, err := link.Channel()
			require.NoError(t, err)
			life, end := context.WithCancel(t.Context())
			defer end()
			closed := ch.NotifyClose(make(chan *amqp.Error, 1))
			go func() { <-closed; end() }() // as the supervision does
			r := &run{letters: &DeadLetters{conn: conn, queue: "q"}, lost: time.Now(), pass: func(context.Context, *reader) error {
				if tt.lost {
					time.AfterFunc(50*time.Millisecond, func() { _ = link.Close() })
				}
				return tt.err
			}}
			err, lost := r.once(t.Context(), life, ch)
			require.ErrorIs(t, err, tt.err)
			require.Equal(t, tt.lost, lost)
			_ = link.Close()
		})
	}
	require.False(t, errors.Is(reconnect.ErrClosed, amqp.ErrClosed), "the end of the Conn is none")
}
