package retry_test

import (
	"context"
	"errors"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/retry"
	"github.com/warrenmq/warren/workqueue"
)

// cuts is how often connections are cut at each step; make chaos sets WARREN_CHAOS for the long form.
func cuts() int {
	if os.Getenv("WARREN_CHAOS") != "" {
		return 500
	}
	return 50
}

// P50, T4: all connections are cut at each step between a handler's failure and the end of its message, many times. At rest
// each message was handled again, or it would stand in a queue; none is in the dead-letter queue.
func TestChaosCutAtEachStep(t *testing.T) {
	t.Parallel()
	half := cuts() / 2
	frozen := func(c *cutter) { c.inHandler, c.meanwhile = c.proxy.FreezeToClient, c.cutOnceCopied }
	for name, step := range map[string]struct {
		times int
		set   func(c *cutter)
	}{
		"before the copy is published":                            {half, func(c *cutter) { c.inHandler = c.cut }},
		"before the copy is published, the publishing side alone": {half, func(c *cutter) { c.inHandler = c.cut; c.apart() }},
		"before its confirm arrives":                              {half, frozen},
		"before its confirm arrives, the publishing side alone":   {half, func(c *cutter) { frozen(c); c.apart() }},
		"before the acknowledgement":                              {cuts(), func(c *cutter) { c.beforeAck = c.cut }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCutter(t)
			step.set(c)
			c.start()
			began := time.Now()
			for i := range step.times {
				c.one(strconv.Itoa(i))
			}
			c.setup.empty(c.policy)
			require.Zero(t, c.depth(c.queue.DeadLetterQueue()))
			t.Logf("%d cuts, %d runs, %v each", step.times, c.runs(), (time.Since(began) / time.Duration(step.times)).Round(time.Millisecond))
		})
	}
}

// cutter is a worker behind a proxy that is cut once for each message.
type cutter struct {
	*setup
	proxy  *testenv.FaultProxy
	worker *reconnect.Conn // which consumes
	policy retry.Policy

	inHandler, beforeAck, meanwhile func()

	mu      sync.Mutex
	seen    map[string]int
	handled map[string]int
	sent    chan struct{} // the message's own confirm has arrived
	failed  chan string   // an id, when its handler has failed for the first time
}

func newCutter(t *testing.T) *cutter {
	t.Helper()
	broker := testenv.Shared(t)
	proxy := testenv.Proxy(t, broker.URL())
	nothing := func() {}
	c := &cutter{proxy: proxy, policy: retry.Policy{MaxAttempts: 1000, InitialDelay: 60 * time.Millisecond, Multiplier: 1},
		inHandler: nothing, beforeAck: nothing, meanwhile: nothing,
		seen: map[string]int{}, handled: map[string]int{}, sent: make(chan struct{}, 1), failed: make(chan string, 1)}
	c.setup = newSetupOn(t, broker, proxy.URL(), workqueue.Queue{})
	c.worker = c.conn
	return c
}

// apart has the worker consume past the proxy, so that only the copies suffer.
func (c *cutter) apart() {
	behind := *c.setup
	behind.url = testenv.Shared(c.t).URL()
	c.worker = behind.dial(testenv.Name(c.t, "apart"))
}

func (c *cutter) cut() { c.proxy.Cut() }

// cutOnceCopied cuts when the broker has the copy beside the original, of which the client does not know.
func (c *cutter) cutOnceCopied() {
	c.t.Helper()
	testenv.Eventually(c.t, patience, func() bool {
		return c.depth(c.queue.Name)+c.depth(c.queue.Name+".retry.60") > 1
	}, "the copy is there")
	c.proxy.Cut()
	c.proxy.Heal()
}

func (c *cutter) start() {
	c.t.Helper()
	wrapped := c.retrier(c.policy).Handle(c.handle)
	c.startOn(c.worker, func(ctx context.Context, d amqp.Delivery) error {
		first := c.first(d.MessageId)
		err := wrapped(ctx, d)
		if first {
			c.beforeAck()
		}
		return err
	}, workqueue.WorkerConfig{})
}

func (c *cutter) first(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen[id] == 0
}

// handle fails each message the first time that it comes.
func (c *cutter) handle(_ context.Context, d amqp.Delivery) error {
	first := c.first(d.MessageId)
	c.mu.Lock()
	c.seen[d.MessageId]++
	if !first {
		c.handled[d.MessageId]++
	}
	c.mu.Unlock()
	if !first {
		return nil
	}
	<-c.sent
	c.inHandler()
	c.failed <- d.MessageId
	return errors.New("not yet")
}

// one sends a message, on the channel that copies are sent on, and waits until it was handled in spite of the cut.
func (c *cutter) one(id string) {
	c.t.Helper()
	pub, err := c.conn.NewPublisher(reconnect.PublisherConfig{Shared: true})
	require.NoError(c.t, err)
	require.NoError(c.t, pub.Publish(c.within(patience), "", c.queue.Name, amqp.Publishing{MessageId: id}))
	c.sent <- struct{}{}
	require.Equal(c.t, id, receive(c.t, c.failed, "message "+id))
	c.meanwhile()
	testenv.Eventually(c.t, patience, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.handled[id] > 0
	}, "message %s is handled", id)
}

func (c *cutter) runs() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, runs := range c.seen {
		n += runs
	}
	return n
}
