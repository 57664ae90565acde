package retry_test

import (
	"context"
	"maps"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/retry"
	"github.com/warrenmq/warren/workqueue"
)

func nested(levels int) amqp.Table {
	t := amqp.Table{"end": "here"}
	for range levels - 1 {
		t = amqp.Table{"in": t}
	}
	return t
}

// outgrown puts a message into a queue whose headers were just below the frame's size when it was published, and have grown
// in the queue in which it died on the way.
func (s *dead) outgrown(queue, id string) {
	s.t.Helper()
	waiting := testenv.Name(s.t, "waiting")
	ch, err := s.broker.Dial(s.t).Channel()
	require.NoError(s.t, err)
	s.t.Cleanup(func() { s.broker.DeleteQueue(s.t, waiting) })
	_, err = ch.QueueDeclare(waiting, true, false, false, false,
		amqp.Table{"x-message-ttl": int64(0), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue})
	require.NoError(s.t, err)
	before := s.depth(queue)
	s.raw("", waiting, amqp.Publishing{MessageId: id, Headers: amqp.Table{"text": strings.Repeat("x", 131_000-10)}})
	testenv.Eventually(s.t, patience, func() bool { return s.depth(queue) == before+1 }, "dead-lettered")
}

// A message that nobody can read ends every look with an error; SkipUnreadable takes it out, it alone, and says what it was.
func TestSkipUnreadable(t *testing.T) {
	t.Parallel()
	for name, publish := range map[string]func(s *dead){
		"nested too deeply": func(s *dead) {
			s.raw("", s.queue.DeadLetterQueue(), amqp.Publishing{MessageId: "the \x1b[31mbad one", Headers: nested(60), Body: []byte("body")})
		},
		"outgrown the frame": func(s *dead) { s.outgrown(s.queue.DeadLetterQueue(), "the \x1b[31mbad one") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newDead(t)
			dlq := s.queue.DeadLetterQueue()
			s.bury(0, 45)
			require.Equal(t, span(0, 20), s.look(20))
			publish(s)
			s.bury(45, 60)
			links := s.links()

			var last error
			for _, err := range s.letters.All(s.within(patience)) {
				last = err
			}
			require.ErrorContains(t, last, "cannot be read")
			require.ErrorContains(t, last, "SkipUnreadable")
			_, err := s.letters.Redrive(s.within(patience), retry.Selection{Where: func(retry.DeadLetter) bool { return false }})
			require.ErrorContains(t, err, "SkipUnreadable")
			s.await(61)

			lost, err := s.letters.SkipUnreadable(s.within(patience), dlq)
			require.NoError(t, err)
			require.Contains(t, lost, `"the \x1b[31mbad one"`)
			require.Contains(t, lost, dlq)
			require.NotContains(t, lost, "\x1b")
			t.Log(lost)
			s.await(60)
			require.ElementsMatch(t, span(0, 60), s.look(-1))

			_, err = s.letters.SkipUnreadable(s.within(patience), dlq)
			require.ErrorContains(t, err, "every message can be read")
			s.returned()
			require.ElementsMatch(t, span(0, 60), idsOf(s.take(dlq)))
			testenv.Eventually(t, patience, func() bool { return maps.Equal(links, s.connections()) },
				"nobody else's connection was closed, and none is left over")
		})
	}
}

// A context that ends in the middle of it is what the error says, and everything is back.
func TestSkipUnreadableBrokenOff(t *testing.T) {
	t.Parallel()
	s := newDead(t)
	const n = 2000 // takes more than a second
	s.bury(0, n)
	for _, limit := range []time.Duration{20 * time.Millisecond, 150 * time.Millisecond, 300 * time.Millisecond} {
		_, err := s.letters.SkipUnreadable(s.within(limit), s.queue.DeadLetterQueue())
		require.ErrorIs(t, err, context.DeadlineExceeded, "after %v", limit)
		s.await(n)
	}
}

// In a classic queue nothing but this takes such a message out.
func TestSkipUnreadableInAClassicQueue(t *testing.T) {
	t.Parallel()
	broker := testenv.Shared(t)
	s := newDeadOn(newSetupOn(t, broker, broker.URL(), workqueue.Queue{MaxPriority: 5, MaxLength: 1000}))
	s.raw("", s.queue.Name, amqp.Publishing{MessageId: "bad", Headers: nested(60)})
	s.publish(3)
	lost, err := s.letters.SkipUnreadable(s.within(patience), s.queue.Name)
	require.NoError(t, err)
	require.Contains(t, lost, `"bad"`)
	_, err = s.letters.SkipUnreadable(s.within(patience), s.queue.Name)
	require.ErrorContains(t, err, "every message can be read")
	require.Equal(t, span(0, 3), idsOf(s.take(s.queue.Name)))

	_, err = s.letters.SkipUnreadable(s.within(patience), "another")
	require.ErrorContains(t, err, `"another" is neither`)
	quorum := newDead(t)
	quorum.publish(1)
	_, err = quorum.letters.SkipUnreadable(s.within(patience), quorum.queue.Name)
	require.ErrorContains(t, err, "is a quorum queue")
	require.Equal(t, 1, quorum.depth(quorum.queue.Name))
}
