package reconnect

import (
	"context"
	"errors"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/report"
	"github.com/warrenmq/warren/internal/testenv"
)

// A supervised function is told its connection: the same for every channel on it, another one after a loss, and closed by
// then.
func TestSuperviseTellsTheConnection(t *testing.T) {
	b := testenv.Shared(t)
	c, _ := dialed(t, b.URL(), Config{})
	conns, goOn := make(chan (<-chan struct{})), make(chan struct{})
	stop := supervise(t, c, "worker", Topology{}, func(ctx context.Context, ch *amqp.Channel) error {
		conns <- report.Connection(ctx)
		select {
		case <-goOn: // gives its channel up
			return errors.Join(errors.New("again"), ch.Close())
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	next := func() <-chan struct{} { return receive(t, conns, 10*time.Second, "the function runs") }
	first := next()
	require.NotNil(t, first)
	goOn <- struct{}{}
	require.Equal(t, first, next(), "another channel of the same connection")
	cutAll(t, b, c)
	receive(t, first, 10*time.Second, "closed with the connection")
	second := next()
	require.NotEqual(t, first, second)
	select {
	case <-second:
		require.Fail(t, "closed, and the connection lives")
	default:
	}
	require.NoError(t, stop())
	require.Nil(t, report.Connection(t.Context()))
}
