package reconnect

import (
	"context"
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// proxied publishes through a proxy, on a channel that is open already.
func proxied(t *testing.T, cfg PublisherConfig) (*pubTest, *testenv.FaultProxy, string) {
	t.Helper()
	broker := testenv.Shared(t)
	proxy := testenv.Proxy(t, broker.URL())
	p := newPubTestAt(t, broker, proxy.URL(), Config{}, cfg)
	queue := p.queue(nil)
	p.soon(func() error { return p.publish("", queue, "warm") })
	p.drain(queue)
	return p, proxy, queue
}

// arrived waits until the queue holds n messages, and takes them.
func (p *pubTest) arrived(queue string, n int) []amqp.Delivery {
	p.t.Helper()
	testenv.Eventually(p.t, 10*time.Second, func() bool { return p.broker.Queue(p.t, queue).Ready >= n }, "%d messages in %s", n, queue)
	return p.drain(queue)
}

// The confirmation does not come: the message is in doubt, and present once.
func TestP18PublishInDoubtWhenTheConfirmIsLost(t *testing.T) {
	t.Parallel()
	ends := map[string]struct {
		cfg   PublisherConfig
		bound time.Duration // of the context; 0: none
		is    error
		says  string
	}{
		"context":        {bound: 300 * time.Millisecond, is: context.DeadlineExceeded},
		"Timeout":        {cfg: PublisherConfig{Timeout: 300 * time.Millisecond}, is: context.DeadlineExceeded, says: "Timeout of 300ms"},
		"ConfirmTimeout": {cfg: PublisherConfig{ConfirmTimeout: 300 * time.Millisecond}, is: ErrUnknown, says: "ConfirmTimeout of 300ms"},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			p, proxy, queue := proxied(t, end.cfg)
			channel := p.p.current.Load()
			proxy.FreezeToClient()
			ctx := t.Context()
			if end.bound > 0 {
				ctx = within(t, end.bound)
			}
			err := p.p.Publish(ctx, "", queue, plainText("a"))
			require.ErrorIs(t, err, ErrUnknown)
			require.ErrorIs(t, err, end.is)
			assert.ErrorContains(t, err, end.says)
			assert.NotErrorIs(t, err, ErrBlocked)
			assert.Len(t, p.arrived(queue, 1), 1)
			proxy.Heal()
			p.soon(func() error { return p.publish("", queue, "b") }) // the channel goes on
			testenv.Eventually(t, 5*time.Second, func() bool { return len(channel.slots) == 0 }, "the slot of the abandoned is free")
		})
	}
}

// Slots are freed by confirmations, not by callers that leave: a window of abandoned messages holds up the next one.
func TestPublishAbandonedMessagesKeepTheirSlots(t *testing.T) {
	t.Parallel()
	p, proxy, queue := proxied(t, PublisherConfig{Window: 3})
	proxy.FreezeToClient()
	concurrently(3, func(i int) {
		assert.ErrorIs(t, p.p.Publish(within(t, 200*time.Millisecond), "", queue, plainText("a")), ErrUnknown)
	})
	err := p.p.Publish(within(t, 200*time.Millisecond), "", queue, plainText("b"))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, ErrUnknown, "it was not sent")
	proxy.Heal()
	require.NoError(t, p.publish("", queue, "c"))
	assert.Equal(t, map[string]int{"a": 3, "c": 1}, p.bodies(queue))
}

// A message whose connection is cut is sent again, with the same MessageId.
func TestPublishAgainAfterACut(t *testing.T) {
	t.Parallel()
	p, proxy, queue := proxied(t, PublisherConfig{})
	proxy.FreezeToClient()
	done := make(chan error, 1)
	go func() { done <- p.publish("", queue, "a") }()
	testenv.Eventually(t, 5*time.Second, func() bool { return p.broker.Queue(t, queue).Ready == 1 }, "it has arrived")
	proxy.Cut()
	proxy.Heal()
	require.NoError(t, receive(t, done, 20*time.Second, "the outcome"))
	got := p.arrived(queue, 2)
	require.Len(t, got, 2)
	assert.Equal(t, got[0].MessageId, got[1].MessageId)
	assert.Equal(t, got[0].Timestamp, got[1].Timestamp)
}

func TestPublishWaitsForALink(t *testing.T) {
	t.Parallel()
	p, proxy, queue := proxied(t, PublisherConfig{})
	proxy.Refuse()
	proxy.Cut()
	testenv.Eventually(t, 5*time.Second, func() bool { return phase(p.conn, publishingLink) == phaseConnecting }, "the link is lost")
	err := p.p.Publish(within(t, 300*time.Millisecond), "", queue, plainText("a"))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, ErrUnknown)
	done := make(chan error, 1)
	go func() { done <- p.publish("", queue, "b") }()
	proxy.Heal()
	require.NoError(t, receive(t, done, 20*time.Second, "the outcome"))
	assert.Equal(t, map[string]int{"b": 1}, p.bodies(queue))
}

func TestPublishFailFast(t *testing.T) {
	p, proxy, queue := proxied(t, PublisherConfig{FailFast: true})
	t.Run("a lost confirmation is in doubt", func(t *testing.T) {
		proxy.FreezeToClient()
		done := make(chan error, 1)
		go func() { done <- p.publish("", queue, "a") }()
		testenv.Eventually(t, 5*time.Second, func() bool { return p.broker.Queue(t, queue).Ready == 1 }, "it has arrived")
		proxy.Refuse()
		proxy.Cut()
		require.ErrorIs(t, receive(t, done, 5*time.Second, "the outcome"), ErrUnknown)
	})
	t.Run("without a link nothing waits", func(t *testing.T) {
		testenv.Eventually(t, 5*time.Second, func() bool { return phase(p.conn, publishingLink) == phaseConnecting }, "the link is lost")
		began := time.Now()
		err := p.publish("", queue, "b")
		require.ErrorContains(t, err, "not connected")
		require.NotErrorIs(t, err, ErrUnknown)
		took(t, began, 100*time.Millisecond, "the error")
		err = p.p.PublishBatch(t.Context(), []Message{{Key: queue}, {Key: queue}})
		require.ErrorContains(t, err, "not connected")
		require.NotErrorIs(t, err, ErrUnknown)
	})
	proxy.Heal()
	testenv.Eventually(t, 10*time.Second, func() bool { return p.publish("", queue, "c") == nil }, "it works again")
	assert.Equal(t, map[string]int{"a": 1, "c": 1}, p.bodies(queue))
}

// Many callers, many cuts: every message arrives, none is confirmed in vain, and duplicates keep their ids.
func TestPublishSurvivesCuts(t *testing.T) {
	t.Parallel()
	p, proxy, queue := proxied(t, PublisherConfig{})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	cuts := make(chan struct{})
	go func() {
		defer close(cuts)
		for pause := 100 * time.Millisecond; ctx.Err() == nil; pause += 20 * time.Millisecond {
			select {
			case <-time.After(pause):
				proxy.Cut()
			case <-ctx.Done():
			}
		}
	}()
	sent := make([]int, 16)
	concurrently(16, func(i int) {
		for ctx.Err() == nil {
			if assert.NoError(t, p.p.Publish(within(t, 30*time.Second), "", queue, plainText(fmt.Sprintf("%d/%d", i, sent[i])))) {
				sent[i]++
			}
		}
	})
	<-cuts
	got := p.bodies(queue)
	total := 0
	for i, n := range sent {
		total += n
		for k := range n {
			if got[fmt.Sprintf("%d/%d", i, k)] == 0 {
				t.Fatalf("message %d/%d was confirmed and is not there", i, k)
			}
		}
	}
	assert.Len(t, got, total)
	assert.Positive(t, total)
}

// The broker closes the channel over nothing that was published: nobody is guilty.
func TestPublishWhenTheChannelIsClosed(t *testing.T) {
	t.Parallel()
	p := newPubTest(t, PublisherConfig{})
	queue := p.queue(nil)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	closer := make(chan struct{})
	go func() {
		defer close(closer)
		for ctx.Err() == nil {
			p.broker.CloseChannels(t, p.conn.cfg.Name)
		}
	}()
	concurrently(4, func(int) {
		for ctx.Err() == nil {
			assert.NoError(t, p.publish("", queue, "a"))
		}
	})
	<-closer
	require.NoError(t, p.publish("", queue, "after"))
}
