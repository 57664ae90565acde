package reconnect

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// numbered returns n messages to the queue whose bodies are their numbers, from first on.
func numbered(queue string, first, n int) []Message {
	msgs := make([]Message, n)
	for i := range msgs {
		msgs[i] = Message{Key: queue, Publishing: plainText(fmt.Sprint(first + i))}
	}
	return msgs
}

// inOrder checks that the first arrivals of numbered messages are in order, and returns how many there are.
func inOrder(t *testing.T, got []amqp.Delivery, without ...int) int {
	t.Helper()
	skip := map[string]bool{}
	for _, n := range without {
		skip[fmt.Sprint(n)] = true
	}
	ids, next := map[string]string{}, 0
	for _, d := range got {
		body := string(d.Body)
		if id, seen := ids[body]; seen {
			require.Equal(t, id, d.MessageId, "a message sent again has its id")
			continue
		}
		ids[body] = d.MessageId
		for skip[fmt.Sprint(next)] {
			next++
		}
		require.Equal(t, fmt.Sprint(next), body, "first arrivals are in order")
		next++
	}
	return len(ids)
}

func TestPublishBatch(t *testing.T) {
	t.Parallel()
	p := newPubTest(t, PublisherConfig{})
	queue := p.queue(nil)
	for _, n := range []int{0, 1, 10, 10_000} {
		require.NoError(t, p.p.PublishBatch(within(t, time.Minute), numbered(queue, 0, n)))
		assert.Equal(t, n, inOrder(t, p.drain(queue)))
	}
	assert.Zero(t, p.p.bytes.Load())
}

// Each message of a batch has its own outcome.
func TestPublishBatchOwnOutcomes(t *testing.T) {
	p := newPubTest(t, PublisherConfig{})
	queue := p.queue(nil)
	full := p.queue(amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
	require.NoError(t, p.publish("", full, "the one that fits"))
	msgs := numbered(queue, 0, 1000)
	msgs[0].MessageId = string(make([]byte, 300))
	msgs[100].Key = queue + ".missing"
	msgs[500].Exchange = testenv.Name(t, "missing")
	msgs[700].Key = full
	msgs[999].Expiration = "never"
	err := p.p.PublishBatch(within(t, time.Minute), msgs)
	var failed BatchError
	require.ErrorAs(t, err, &failed)
	require.Len(t, failed, 1000)
	assert.True(t, isPermanent(failed[0]))
	assert.ErrorAs(t, failed[100], new(*ReturnedError))
	assert.Equal(t, amqp.NotFound, amqpCode(failed[500]))
	assert.NotErrorIs(t, failed[500], ErrUnknown)
	assert.ErrorIs(t, failed[700], ErrRefused)
	assert.True(t, isPermanent(failed[999]))
	for i, err := range failed {
		if err != nil {
			assert.Contains(t, []int{0, 100, 500, 700, 999}, i, "%v", err)
		}
	}
	assert.Equal(t, 995, inOrder(t, p.drain(queue), 0, 100, 500, 700, 999))
}

// A message over which the broker closes the channel fails alone, and the order holds.
func TestPublishBatchGuiltyFailsAlone(t *testing.T) {
	p := newPubTest(t, PublisherConfig{})
	queue := p.queue(nil)
	name := testenv.Name(t, "deleted")
	require.NoError(t, p.raw.ExchangeDeclare(name, "fanout", true, false, false, false, nil))
	require.ErrorAs(t, p.publish(name, "", "seen"), new(*ReturnedError))
	require.NoError(t, p.raw.ExchangeDelete(name, false, false))
	msgs := numbered(queue, 0, 2000)
	msgs[700].Exchange = name
	var failed BatchError
	require.ErrorAs(t, p.p.PublishBatch(within(t, time.Minute), msgs), &failed)
	assert.Equal(t, amqp.NotFound, amqpCode(failed[700]))
	assert.NotErrorIs(t, failed[700], ErrUnknown)
	failed[700] = nil
	require.NoError(t, errors.Join(failed...))
	got := p.drain(queue)
	assert.Equal(t, 1999, inOrder(t, got, 700))
	assert.LessOrEqual(t, len(got), 1999+defaultWindow)
}

// Whole batches to a forbidden exchange, beside good ones of another caller.
func TestPublishBatchAllGuilty(t *testing.T) {
	broker, url := restrictedUser(t)
	p := newPubTestAt(t, broker, url, Config{}, PublisherConfig{})
	queue := p.queue(nil)
	bad := make([]Message, 500)
	for i := range bad {
		bad[i] = Message{Exchange: "amq.topic", Key: "k"}
	}
	var wg sync.WaitGroup
	wg.Go(func() { assert.NoError(t, p.p.PublishBatch(within(t, time.Minute), numbered(queue, 0, 5000))) })
	var failed BatchError
	assert.ErrorAs(t, p.p.PublishBatch(within(t, time.Minute), bad), &failed)
	for _, err := range failed {
		assert.Equal(t, amqp.AccessRefused, amqpCode(err))
	}
	wg.Wait()
	assert.Equal(t, 5000, inOrder(t, p.drain(queue)))
}

// Cuts at random points of batches of 1 to 2,000 messages, of 1,000 batches in make chaos: first arrivals in order,
// everything there.
func TestChaosPublishBatchKeepsOrderOverCuts(t *testing.T) {
	t.Parallel()
	broker := testenv.Shared(t)
	proxy := testenv.Proxy(t, broker.URL())
	p := newPubTestAt(t, broker, proxy.URL(), Config{BackoffMax: 30 * time.Millisecond}, PublisherConfig{})
	queue := p.queue(nil)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { // another caller on the same channel
		for ctx.Err() == nil {
			if err := p.p.Publish(ctx, "", queue+".missing", plainText("other")); ctx.Err() == nil {
				assert.ErrorAs(t, err, new(*ReturnedError))
			}
		}
	})
	total, batches := 0, 50
	if inChaos() {
		batches = 1000
	}
	for range batches {
		n := 1 + rand.IntN(2000)
		cut := time.AfterFunc(time.Duration(rand.IntN(n*20))*time.Microsecond, func() { proxy.Cut() })
		require.NoError(t, p.p.PublishBatch(within(t, time.Minute), numbered(queue, total, n)))
		cut.Stop()
		total += n
	}
	cancel()
	wg.Wait()
	got := p.drain(queue)
	assert.Equal(t, total, inOrder(t, got))
	t.Logf("%d messages, %d duplicates", total, len(got)-total)
}

// The end of ctx in the middle: what was sent and not confirmed is in doubt, the rest was not sent.
func TestPublishBatchEndsWithItsContext(t *testing.T) {
	t.Parallel()
	const limit = 2 * time.Second // before anything counts as stalled
	for _, tc := range []struct {
		name  string
		cfg   PublisherConfig
		is    error
		bound time.Duration
	}{
		{"context", PublisherConfig{Window: 10}, context.DeadlineExceeded, limit},
		{"Timeout", PublisherConfig{Window: 10, Timeout: limit}, context.DeadlineExceeded, limit},
		{"ConfirmTimeout", PublisherConfig{Window: 10, ConfirmTimeout: 500 * time.Millisecond}, nil, 500 * time.Millisecond},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			p, proxy, queue := proxied(t, tc.cfg)
			proxy.FreezeToClient()
			ctx := t.Context()
			if tc.name == "context" {
				ctx = within(t, tc.bound)
			}
			began := time.Now()
			var failed BatchError
			require.ErrorAs(t, p.p.PublishBatch(ctx, numbered(queue, 0, 30)), &failed)
			took(t, began, tc.bound, "the batch")
			sent := 0 // a window, or less when the time was over in the middle of sending that
			for i, err := range failed {
				require.Error(t, err)
				if errors.Is(err, ErrUnknown) {
					assert.Equal(t, sent, i, "%v", err)
					sent++
				}
				if tc.is != nil {
					assert.ErrorIs(t, err, tc.is)
				}
			}
			assert.Positive(t, sent)
			assert.LessOrEqual(t, sent, 10)
			assert.ErrorIs(t, failed[29], errNotSent)
			assert.Equal(t, sent, inOrder(t, p.arrived(queue, sent)), "in doubt is what was sent, and nothing else")
			proxy.Heal()
		})
	}
}

func TestPublishBatchFailFastEndsAtTheFirstLoss(t *testing.T) {
	t.Parallel()
	p, proxy, queue := proxied(t, PublisherConfig{FailFast: true, Window: 10})
	proxy.FreezeToClient()
	done := make(chan error, 1)
	go func() { done <- p.p.PublishBatch(within(t, 20*time.Second), numbered(queue, 0, 30)) }()
	testenv.Eventually(t, 5*time.Second, func() bool { return p.broker.Queue(t, queue).Ready == 10 }, "a window has arrived")
	proxy.Cut()
	proxy.Heal()
	var failed BatchError
	require.ErrorAs(t, receive(t, done, 10*time.Second, "the outcome"), &failed)
	for i, err := range failed {
		require.Error(t, err)
		assert.Equal(t, i < 10, errors.Is(err, ErrUnknown), "%d: %v", i, err)
		assert.Equal(t, i >= 10, errors.Is(err, errNotSent))
	}
	assert.Len(t, p.drain(queue), 10)
}
