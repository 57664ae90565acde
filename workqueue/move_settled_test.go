package workqueue_test

import (
	"strconv"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/workqueue"
)

// Every other message is more than we send, so the copies of the others are acknowledged one by one, right before the channel is
// closed: none of them stays.
func TestMoveLeavesOnlyWhatItCannotSend(t *testing.T) {
	t.Parallel()
	const n = 180
	s := newMove(t, workqueue.Queue{})
	to := workqueue.Queue{Name: s.queue.Name + ".v2"}
	require.NoError(t, s.conn.Declare(within(t, patience), s.queue.Topology()))
	raw, err := s.broker.Dial(t).Channel()
	require.NoError(t, err)
	require.NoError(t, raw.Confirm(false))
	for i := range n {
		msg := amqp.Publishing{MessageId: strconv.Itoa(i)}
		if i%2 == 1 {
			msg.Headers = nested(20)
		}
		_, err := raw.PublishWithDeferredConfirm("", s.queue.Name, true, false, msg)
		require.NoError(t, err)
	}
	testenv.Eventually(t, patience, func() bool { return s.broker.Queue(t, s.queue.Name).Ready == n }, "all there")
	moved, err := s.move(s.queue, to)
	require.ErrorContains(t, err, "nested deeper")
	require.Equal(t, n/2, moved)
	testenv.Eventually(t, patience, func() bool { return s.broker.Queue(t, s.queue.Name).Unacked == 0 }, "the channel is gone")
	require.Equal(t, n/2, s.broker.Queue(t, s.queue.Name).Ready, "what was moved is not there, too")
	require.Equal(t, n/2, s.broker.Queue(t, to.Name).Ready)
}
