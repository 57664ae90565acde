package workqueue_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

// outage is what a handler returns whose database is away.
type outage struct{}

func (outage) Error() string             { return "database away" }
func (outage) NotNow() bool              { return true }
func (outage) RetryAfter() time.Duration { return 20 * time.Millisecond }

// An outage of what the handlers need does not empty the queue into the dead-letter queue: messages wait where they are,
// with no attempt counted; after three refusals one handler at a time asks whether it is over; the states say so; and
// when it is over, all go on.
func TestNotNowDuringAnOutage(t *testing.T) {
	t.Parallel()
	const concurrency, messages = 4, 40
	s := newSetup(t, workqueue.Queue{})
	var up atomic.Bool
	var late, most, asked, redelivered atomic.Int32
	handled := newRuns()
	s.start(s.conn, func(ctx context.Context, d amqp.Delivery) error {
		if up.Load() {
			handled.add(d)
			return nil
		}
		if asked.Add(1) > 2*concurrency { // these began when it was known; who began before, and is slow to leave, does not count
			if now := late.Add(1); now > 1 {
				most.Store(now)
			}
			defer late.Add(-1)
		}
		if d.Redelivered {
			redelivered.Add(1)
		}
		if err := work(ctx, time.Millisecond); err != nil {
			return err
		}
		return outage{}
	}, workqueue.WorkerConfig{Concurrency: concurrency, Prefetch: 5})
	s.publish(messages)
	testenv.Eventually(t, patience, func() bool {
		said := 0
		for _, state := range workers(s.conn) {
			if state.Phase == "waiting" && strings.Contains(state.Reason, "one message at a time until one succeeds") {
				said++
			}
		}
		return said == concurrency
	}, "every worker's state says what it waits for")
	n := asked.Load()
	testenv.Eventually(t, patience, func() bool { return asked.Load() >= n+20 }, "they keep asking")
	require.Zero(t, most.Load(), "one at a time")
	require.Equal(t, messages, s.depth(s.queue.Name), "all wait in the queue")
	require.Zero(t, s.depth(s.queue.DeadLetterQueue()))
	require.Zero(t, redelivered.Load(), "no message came again")

	up.Store(true)
	s.settled()
	require.Equal(t, messages, handled.distinct())
	require.Equal(t, 1, handled.most())
	consuming(t, s.conn, concurrency)
	require.Zero(t, s.depth(s.queue.DeadLetterQueue()))
}

// A message waits no longer than the broker allows: it is handed back before that closes the channel, by a sixth of the
// timeout, which is long enough for a pause of this process or of the broker.
func TestNotNowIsBoundedByTheConsumerTimeout(t *testing.T) {
	t.Parallel()
	const timeout = 7200 * time.Millisecond
	node, log := testenv.Node(t), newLines()
	node.ConsumerTimeout(timeout)
	s := newSetupWith(t, node.Broker, node.URL(), workqueue.Queue{}, reconnect.Config{ConsumerTimeout: timeout, Logger: testenv.LoggerTo(log)})
	var up atomic.Bool
	var returned atomic.Int32
	handled := newRuns()
	s.start(s.conn, func(_ context.Context, d amqp.Delivery) error {
		if d.Redelivered {
			returned.Add(1)
		}
		if !up.Load() {
			return outage{}
		}
		handled.add(d)
		return nil
	}, workqueue.WorkerConfig{Concurrency: 2, Prefetch: 4})
	s.publish(10)
	testenv.Eventually(t, patience, func() bool { return returned.Load() > 0 }, "a message was handed back, and came again")
	require.NoError(t, work(t.Context(), timeout/3)) // past the broker's next look
	up.Store(true)
	s.settled()
	require.Equal(t, 10, handled.distinct())
	require.Zero(t, log.count(lostChannel), "the broker closed no channel")
	require.Zero(t, s.depth(s.queue.DeadLetterQueue()))
}
