package retry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
)

// The first sign of a lost connection may come before its channel knows: the driver marks the connection first.
// It is no reason to end a call that goes on through losses. What somebody else's connection says, is.
func TestFirstSignOfALoss(t *testing.T) {
	t.Parallel()
	broker := testenv.Shared(t)
	for name, tt := range map[string]struct {
		err  error
		lost bool
	}{
		"the connection is closed": {fmt.Errorf("of a call: %w", amqp.ErrClosed), true},
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

// A connection that is lost between two of the questions that tell what kind of queue it is says nothing about the queue.
func TestLossIsNoDifference(t *testing.T) {
	t.Parallel()
	broker := testenv.Shared(t)
	name := testenv.Name(t, "jobs")
	ch, err := broker.Dial(t).Channel()
	require.NoError(t, err)
	_, err = ch.QueueDeclare(deadLetterQueue(name), true, false, false, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeClassic})
	require.NoError(t, err)
	t.Cleanup(func() { broker.DeleteQueue(t, deadLetterQueue(name)) })
	proxy := testenv.Proxy(t, broker.URL())
	conn, err := reconnect.Dial(t.Context(), proxy.URL(), reconnect.Config{Name: name, BackoffMin: 10 * time.Millisecond,
		BackoffMax: 10 * time.Millisecond, Logger: testenv.Logger(io.Discard)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(context.Background())) })
	l, err := NewDeadLetters(conn, name)
	require.NoError(t, err)
	lost := 0
	for range 60 {
		time.AfterFunc(rand.N(8*time.Millisecond), func() { proxy.Cut() })
		k, err := l.prove(t.Context())
		if err == nil {
			require.False(t, k.quorum)
			continue
		}
		lost++
		var differs *reconnect.TopologyError
		require.False(t, errors.As(err, &differs), "%v", err)
	}
	t.Logf("lost in %d of 60 calls", lost)
}
