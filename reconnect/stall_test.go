package reconnect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// stallTest is a publisher with a queue that will confirm nothing and one that works.
type stallTest struct {
	*pubTest
	stalled, healthy string
}

func newStallTest(t *testing.T, cfg PublisherConfig) *stallTest {
	p := newPubTest(t, cfg)
	s := &stallTest{pubTest: p, healthy: p.queue(nil), stalled: p.queue(amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum})}
	p.soon(func() error { return p.publish("", s.healthy, "before") })
	p.soon(func() error { return p.publish("", s.stalled, "before") })
	return s
}

// A window full of messages that nobody confirms holds up messages to other queues, but not for ever.
func TestStalledQueueDoesNotKeepTheWindow(t *testing.T) {
	t.Parallel()
	p := newStallTest(t, PublisherConfig{Window: 8, ConfirmTimeout: 500 * time.Millisecond})
	resume := p.broker.StallQueue(t, p.stalled)
	concurrently(8, func(i int) {
		require.ErrorIs(t, p.publish("", p.stalled, fmt.Sprint(i)), ErrUnknown)
	})
	began := time.Now()
	p.soon(func() error { return p.publish("", p.healthy, "a") })
	took(t, began, 2*time.Second, "a publish elsewhere") // four looks of a third of minStallAfter, and a round trip: 1.5 s

	resume()
	testenv.Eventually(t, 10*time.Second, func() bool { return p.broker.Queue(t, p.stalled).Ready >= 1+8 }, "those in doubt arrive")
	p.soon(func() error { return p.publish("", p.stalled, "after") })
	testenv.Eventually(t, 5*time.Second, func() bool { return p.channels() == 1 }, "the channel that was set aside is closed")
}

// The same for a batch, whose messages keep their order.
func TestStalledQueueEndsBatches(t *testing.T) {
	t.Parallel()
	p := newStallTest(t, PublisherConfig{Window: 8, ConfirmTimeout: 500 * time.Millisecond})
	batch := func(key string) []Message {
		msgs := make([]Message, 20)
		for i := range msgs {
			msgs[i] = Message{Key: key, Publishing: plainText(fmt.Sprint(i))}
		}
		return msgs
	}
	resume := p.broker.StallQueue(t, p.stalled)
	for range 3 {
		var errs BatchError
		require.ErrorAs(t, p.p.PublishBatch(within(t, 10*time.Second), batch(p.stalled)), &errs)
		require.Len(t, errs, 20)
		for i, err := range errs {
			require.Error(t, err, i)
		}
		require.NotErrorIs(t, errs[19], ErrUnknown, "it was not sent")
		p.soon(func() error { return p.p.PublishBatch(within(t, 10*time.Second), batch(p.healthy)) })
	}
	resume()
	p.soon(func() error { return p.p.PublishBatch(within(t, 10*time.Second), batch(p.stalled)) })
	got := p.drain(p.stalled)
	last := got[len(got)-20:]
	for i, d := range last {
		require.Equal(t, fmt.Sprint(i), string(d.Body))
	}
	testenv.Eventually(t, 10*time.Second, func() bool { return p.channels() == 1 }, "the channels it took are closed")
}

// FailFast waits for nothing but a place in the window, and that no longer than for a confirmation.
func TestStalledQueueWithFailFast(t *testing.T) {
	t.Parallel()
	p := newStallTest(t, PublisherConfig{FailFast: true, Window: 2, ConfirmTimeout: 300 * time.Millisecond})
	p.broker.StallQueue(t, p.stalled)
	for i := range 6 {
		began := time.Now()
		err := p.publish("", p.stalled, fmt.Sprint(i))
		require.Error(t, err)
		took(t, began, 500*time.Millisecond, "the error")
		if i >= 4 {
			require.NotErrorIs(t, err, ErrUnknown, "both windows are full")
			require.ErrorContains(t, err, "confirms nothing")
		}
		p.soon(func() error { return p.publish("", p.healthy, "a") })
	}
}

// What is stalled, by its names.
func TestStalls(t *testing.T) {
	s := stalls{log: testenv.Logger(io.Discard)}
	to := func(exchange, key string) *Message { return &Message{Exchange: exchange, Key: key} }
	require.False(t, s.has(to("", "a")))
	s.confirmed("", "a") // nothing to do

	s.note([]route{{"", "a"}, {"x", "a"}, {"", "a"}})
	require.True(t, s.has(to("", "a")))
	require.True(t, s.has(to("x", "a")))
	require.False(t, s.has(to("x", "b")))
	require.False(t, s.has(to("", "b")))
	s.confirmed("x", "b")
	s.confirmed("", "a")
	require.False(t, s.has(to("", "a")))
	require.True(t, s.has(to("x", "a")))

	for i := range wholeExchange {
		s.note([]route{{"x", fmt.Sprint(i)}, {"", fmt.Sprint(i)}})
	}
	require.True(t, s.has(to("x", "never seen")), "too many of its keys are")
	require.False(t, s.has(to("", "never seen")), "these have a queue each")
	for i := range wholeExchange {
		s.confirmed("x", fmt.Sprint(i))
		s.confirmed("", fmt.Sprint(i))
	}
	require.False(t, s.has(to("x", "never seen")))
	s.confirmed("x", "a")
	require.Equal(t, 0, len(s.since)+len(s.keys))
	require.False(t, s.any.Load())

	for i := range maxStalls + 1 {
		s.note([]route{{"y", fmt.Sprint(i)}})
	}
	require.Len(t, s.since, maxStalls)
	require.Equal(t, maxStalls, s.keys["y"])
	require.NotContains(t, s.since, route{"y", "0"})
}

// A broker whose queue does not answer stops reading from connections that went on publishing to it, and nothing tells
// them. Others get through all the same.
func TestStalledQueueUnderLoad(t *testing.T) {
	p := newStallTest(t, PublisherConfig{ConfirmTimeout: 9 * time.Second})
	undisturbed := p.goodCallers(p.healthy, "alone", time.Second, func(context.Context) {})
	before := p.p.current.Load().session
	resume := p.broker.StallQueue(t, p.stalled)

	ctx, halt := context.WithCancel(t.Context())
	defer halt()
	var stuck sync.WaitGroup
	var doubtful, notSent atomic.Int64
	for range 64 { // more than the broker lets a channel have in such a queue
		stuck.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				err := p.p.Publish(within(t, 5*time.Second), "", p.stalled, plainText("stuck"))
				assert.Less(t, time.Since(began), 8*time.Second) // its context's 5 s and a hiccup of the machine, less than ConfirmTimeout
				switch {
				case assert.Error(t, err) && isUnknown(err):
					doubtful.Add(1)
				default:
					notSent.Add(1)
				}
			}
		})
	}
	first := p.goodCallers(p.healthy, "at first", 8*time.Second, func(context.Context) {})
	var then float64
	for round := 0; round < 3 && then <= undisturbed*0.25; round++ { // the machine may do something else for a second
		then = p.goodCallers(p.healthy, fmt.Sprint("then ", round), time.Second, func(context.Context) {})
	}
	require.NoError(t, p.conn.Ping(within(t, 5*time.Second)))
	t.Logf("another connection: %v", p.p.current.Load().session != before)
	t.Logf("rate undisturbed %.0f/s, in the first 8 s %.0f/s, then %.0f/s", undisturbed, first, then)
	assert.Greater(t, then/undisturbed, 0.25)

	halt()
	stuck.Wait()
	t.Logf("%d in doubt, %d not sent", doubtful.Load(), notSent.Load())
	resume()
	began := time.Now()
	require.NoError(t, p.publish("", p.stalled, "after"))
	took(t, began, time.Second, "the first publish after it")
	assert.LessOrEqual(t, p.broker.Queue(t, p.stalled).Ready, int(doubtful.Load())+2*defaultWindow)
}

func isUnknown(err error) bool { return errors.Is(err, ErrUnknown) }
