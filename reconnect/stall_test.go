package reconnect

import (
	"context"
	"errors"
	"fmt"
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
	require.NoError(t, p.publish("", s.healthy, "before"))
	require.NoError(t, p.publish("", s.stalled, "before"))
	return s
}

// A window full of messages that nobody confirms holds up messages to other queues, but not for ever.
func TestStalledQueueDoesNotKeepTheWindow(t *testing.T) {
	p := newStallTest(t, PublisherConfig{Window: 8, ConfirmTimeout: 500 * time.Millisecond})
	resume := p.broker.StallQueue(t, p.stalled)
	concurrently(8, func(i int) {
		require.ErrorIs(t, p.publish("", p.stalled, fmt.Sprint(i)), ErrUnknown)
	})
	began := time.Now()
	require.NoError(t, p.publish("", p.healthy, "a"))
	took(t, began, time.Second, "a publish elsewhere")

	resume()
	testenv.Eventually(t, 10*time.Second, func() bool { return p.broker.Queue(t, p.stalled).Ready == 1+8 }, "those in doubt arrive")
	require.NoError(t, p.publish("", p.stalled, "after"))
	testenv.Eventually(t, 5*time.Second, func() bool { return p.channels() == 1 }, "the channel that was set aside is closed")
}

// A broker whose queue does not answer stops reading from connections that went on publishing to it, and nothing tells
// them. Others get through all the same.
func TestStalledQueueUnderLoad(t *testing.T) {
	p := newStallTest(t, PublisherConfig{ConfirmTimeout: 3 * time.Second})
	undisturbed := p.goodCallers(p.healthy, "alone", 2*time.Second, func(context.Context) {})
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
				assert.Less(t, time.Since(began), 6*time.Second)
				switch {
				case assert.Error(t, err) && isUnknown(err):
					doubtful.Add(1)
				default:
					notSent.Add(1)
				}
			}
		})
	}
	first := p.goodCallers(p.healthy, "at first", 5*time.Second, func(context.Context) {})
	then := p.goodCallers(p.healthy, "then", 2*time.Second, func(context.Context) {})
	require.NoError(t, p.conn.Ping(within(t, 5*time.Second)))
	t.Logf("rate undisturbed %.0f/s, in the first 5 s %.0f/s, then %.0f/s", undisturbed, first, then)
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
