package reconnect

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

func TestLooksDeleted(t *testing.T) {
	for want, errs := range map[bool][]error{
		true: {errConsumerCancelled, &amqp.Error{Code: amqp.NotFound, Server: true}, &amqp.Error{Code: amqp.InternalError, Server: true},
			fmt.Errorf("%w: %w", errChannelClosed, amqp.ErrCommandInvalid), amqp.ErrClosed},
		false: {nil, errors.New("no"), errChannelClosed, &amqp.Error{Code: amqp.ConnectionForced, Server: true}, &amqp.Error{Code: amqp.FrameError},
			&amqp.Error{Code: amqp.PreconditionFailed, Server: true}},
	} {
		for _, err := range errs {
			require.Equal(t, want, looksDeleted(err), "%v", err)
		}
	}
}

// A deleted queue does not come back at once: some channels of this or another process may not yet have noticed that it is
// gone, and RabbitMQ 3 would attach them to the new one in a way in which they get nothing.
func TestSuperviseLeavesADeletedQueueAlone(t *testing.T) {
	t.Parallel()
	broker := testenv.Shared(t)
	c, _ := dialed(t, broker.URL(), Config{})
	queue := testenv.Name(t, "q")
	t.Cleanup(func() { broker.DeleteQueue(t, queue) })
	started, noticed := make(chan time.Time, 10), make(chan time.Time, 10)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- c.Supervise(ctx, "worker", Topology{Queues: []Queue{{Name: queue}}}, func(ctx context.Context, ch *amqp.Channel) error {
			if _, err := ch.Consume(queue, "", false, false, false, false, nil); err != nil {
				return err
			}
			started <- time.Now()
			<-ctx.Done()
			noticed <- time.Now()
			return ctx.Err()
		})
	}()
	receive(t, started, 10*time.Second, "the first run")
	broker.DeleteQueue(t, queue)
	// Counted from when the function has noticed: how long the deletion takes to return is another matter.
	left := receive(t, noticed, 10*time.Second, "the end of the first run")
	again := receive(t, started, 10*time.Second, "the second run")
	require.GreaterOrEqual(t, again.Sub(left), afterDeletion, "declared again too early")
	cancel()
	require.NoError(t, receive(t, done, 10*time.Second, "the end"))
}
