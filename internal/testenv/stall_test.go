package testenv_test

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

func TestStallQueue(t *testing.T) {
	for _, kind := range []string{amqp.QueueTypeQuorum, amqp.QueueTypeClassic} {
		t.Run(kind, func(t *testing.T) {
			b := testenv.Shared(t)
			ch := channel(t, b.Dial(t))
			require.NoError(t, ch.Confirm(false))
			other := declare(t, b, ch)
			queue := testenv.Name(t, "q")
			_, err := ch.QueueDeclare(queue, true, false, false, false, amqp.Table{amqp.QueueTypeArg: kind})
			require.NoError(t, err)
			t.Cleanup(func() { b.DeleteQueue(t, queue) })
			publish(t, ch, queue, nil)

			resume := b.StallQueue(t, queue)
			confirm, err := ch.PublishWithDeferredConfirm("", queue, false, false, amqp.Publishing{})
			require.NoError(t, err)
			publish(t, ch, other, nil)
			require.False(t, confirmed(t, confirm, quiet))
			resume()
			require.True(t, confirmed(t, confirm, patience))
			resume() // again: nothing
			b.StallQueue(t, queue)
		})
	}
}
