package workqueue_test

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

// Two of three queues hold a message that closes the connection of whoever is sent it. The 1,000 good messages among them
// are handled, none is dead-lettered, and the connection that all share is lost three times at most.
func TestUnreadableMessagesAreContained(t *testing.T) {
	const good, concurrency, shared = 1000, 16, 3
	log := &linkLosses{counts: &counts{n: map[string]int{}}}
	s := newSetupWith(t, testenv.Shared(t), testenv.Shared(t).URL(), workqueue.Queue{}, reconnect.Config{Logger: testenv.LoggerTo(log)})
	queues := s.further(2)
	const early, late = good / 10, good * 3 / 4 // the second one comes when all seems to be well again
	for i, q := range queues {
		q.fill(i, 0, [...]int{early, late, late}[i])
	}
	queues[0].raw(amqp.Publishing{MessageId: "deep", Headers: nested(60)})
	queues[1].rawDead(amqp.Publishing{MessageId: "long", Headers: amqp.Table{"text": strings.Repeat("x", 131_000-10)}})
	for i, q := range queues {
		q.fill(i, [...]int{early, late, late}[i], good)
	}

	handled := newRuns()
	for _, q := range queues {
		q.start(s.conn, func(ctx context.Context, d amqp.Delivery) error {
			if err := work(ctx, 300*time.Millisecond); err != nil {
				return err
			}
			handled.add(d)
			return nil
		}, workqueue.WorkerConfig{Concurrency: concurrency})
	}
	for _, guilty := range queues[:2] {
		testenv.Eventually(t, patience, func() bool { return s.blamed(guilty.queue.Name) },
			"the state names the queue %s", guilty.queue.Name)
	}
	testenv.Eventually(t, patience, func() bool { return handled.distinct() == good }, "all good ones handled")
	for i, q := range queues {
		q.settled()
		guilty := 1
		if i == 2 {
			guilty = 0
		}
		q.deadLettered(guilty) // only the message that cannot be read
	}
	t.Logf("losses: %v; runs of the good ones: %d, at most %d of one", log.all(), handled.total(), handled.most())
	require.LessOrEqual(t, log.of("consuming"), shared, "losses of the shared link")
	require.NotZero(t, log.of("consuming/apart"))
	require.False(t, s.blamed(queues[2].queue.Name))
	testenv.Eventually(t, patience, func() bool {
		return s.channelsOn("consuming") == concurrency && s.channelsOn("consuming/apart") == 2*concurrency
	}, "the workers of the innocent queue are back on the shared link, those of the others apart")
}

// further returns s, and setups of n further queues on its Conn.
func (s *setup) further(n int) []*setup {
	s.t.Helper()
	out := []*setup{s}
	for i := range n {
		other := *s
		other.queue.Name += "-" + strconv.Itoa(i+2)
		s.t.Cleanup(func() {
			s.broker.DeleteQueue(s.t, other.queue.Name)
			s.broker.DeleteQueue(s.t, other.queue.DeadLetterQueue())
		})
		out = append(out, &other)
	}
	return out
}

// fill publishes to the i-th of three queues its third of the messages numbered from up to to.
func (s *setup) fill(i, from, to int) {
	s.t.Helper()
	var msgs []amqp.Publishing
	for n := from; n < to; n++ {
		if n%3 == i {
			msgs = append(msgs, amqp.Publishing{MessageId: strconv.Itoa(n)})
		}
	}
	require.NoError(s.t, s.producer(reconnect.PublisherConfig{}).PublishBatch(s.t.Context(), msgs))
}

// rawDead publishes like raw, but to another queue, in which the message dies and so comes to this one, with the headers
// that this adds.
func (s *setup) rawDead(msg amqp.Publishing) {
	s.t.Helper()
	before := s.depth(s.queue.Name)
	ch, err := s.broker.Dial(s.t).Channel()
	require.NoError(s.t, err)
	waiting := *s
	waiting.queue.Name = testenv.Name(s.t, "waiting")
	s.t.Cleanup(func() { s.broker.DeleteQueue(s.t, waiting.queue.Name) })
	_, err = ch.QueueDeclare(waiting.queue.Name, true, false, false, false,
		amqp.Table{"x-message-ttl": int64(0), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": s.queue.Name})
	require.NoError(s.t, err)
	waiting.raw(msg)
	testenv.Eventually(s.t, patience, func() bool { return s.depth(s.queue.Name) == before+1 }, "dead-lettered")
}

func nested(levels int) amqp.Table {
	t := amqp.Table{"end": "here"}
	for range levels - 1 {
		t = amqp.Table{"in": t}
	}
	return t
}

// blamed reports whether the state of a worker says that a queue holds an unreadable message.
func (s *setup) blamed(queue string) bool {
	for _, st := range s.conn.State() {
		if strings.Contains(st.Reason, strconv.Quote(queue)+" holds a message that cannot be read") {
			return true
		}
	}
	return false
}

// channelsOn counts the channels on the Conn's connections of a role.
func (s *setup) channelsOn(role string) (n int) {
	for _, ch := range s.broker.Channels(s.t, s.name) {
		if ch.Connection == s.name+"/"+role {
			n++
		}
	}
	return n
}

// linkLosses counts the losses that are logged, by link. It is the handler of a slog.Logger.
type linkLosses struct {
	link string
	*counts
}

type counts struct {
	mu sync.Mutex
	n  map[string]int
}

func (l *linkLosses) Enabled(context.Context, slog.Level) bool { return true }
func (l *linkLosses) WithGroup(string) slog.Handler            { return l }

func (l *linkLosses) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		if a.Key == "link" {
			return &linkLosses{a.Value.String(), l.counts}
		}
	}
	return l
}

func (l *linkLosses) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "connection lost" {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.n[l.link]++
	}
	return nil
}

func (c *counts) of(link string) int { return c.all()[link] }

func (c *counts) all() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]int{}
	for link, n := range c.n {
		out[link] = n
	}
	return out
}
