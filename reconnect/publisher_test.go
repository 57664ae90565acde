package reconnect

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPublishFillsInWhatAMessageMustHave(t *testing.T) {
	p := newPubTest(t, PublisherConfig{})
	queue := p.queue(nil)
	before := time.Now().Truncate(time.Second)
	headers := amqp.Table{"mine": "yes"}
	require.NoError(t, p.p.Publish(t.Context(), "", queue, amqp.Publishing{Headers: headers, Body: []byte("a")}))
	stamp := time.Now().Add(-time.Hour).Truncate(time.Second)
	require.NoError(t, p.p.Publish(t.Context(), "", queue,
		amqp.Publishing{MessageId: "my own", Timestamp: stamp, DeliveryMode: amqp.Transient, Body: []byte("b")}))

	got := p.drain(queue)
	require.Len(t, got, 2)
	id, err := uuid.Parse(got[0].MessageId)
	require.NoError(t, err)
	assert.Equal(t, uuid.Version(7), id.Version())
	assert.WithinRange(t, got[0].Timestamp, before, time.Now())
	assert.Equal(t, amqp.Persistent, got[0].DeliveryMode)
	assert.Empty(t, got[0].UserId)
	assert.Equal(t, "yes", got[0].Headers["mine"])
	assert.Equal(t, amqp.Table{"mine": "yes"}, headers, "the caller's map is left alone")
	assert.Equal(t, "my own", got[1].MessageId)
	assert.True(t, stamp.Equal(got[1].Timestamp))
	assert.Equal(t, amqp.Transient, got[1].DeliveryMode)
}

func TestPublishTransient(t *testing.T) {
	p := newPubTest(t, PublisherConfig{Transient: true})
	queue := p.queue(nil)
	require.NoError(t, p.publish("", queue, "a"))
	assert.Equal(t, amqp.Transient, p.drain(queue)[0].DeliveryMode)
}

func TestPublishTellsReturnedFromConfirmed(t *testing.T) {
	p := newPubTest(t, PublisherConfig{})
	exchange, queue := p.exchange("bound")
	require.NoError(t, p.publish(exchange, "bound", "a"))
	err := p.p.Publish(t.Context(), exchange, "unbound", amqp.Publishing{MessageId: "id-1"})
	var returned *ReturnedError
	require.ErrorAs(t, err, &returned)
	assert.Equal(t, &ReturnedError{Exchange: exchange, Key: "unbound", MessageID: "id-1", Code: 312, Text: "NO_ROUTE"}, returned)
	assert.False(t, isPermanent(err))
	assert.Len(t, p.drain(queue), 1)

	loose, err := p.conn.NewPublisher(PublisherConfig{AllowUnroutable: true})
	require.NoError(t, err)
	require.NoError(t, loose.Publish(t.Context(), exchange, "unbound", plainText("b")))
}

// A full queue nacks; the broker mixes nacks with acks of several messages at once.
func TestPublishTellsNackFromAck(t *testing.T) {
	p := newPubTest(t, PublisherConfig{})
	exchange, free := p.exchange("free")
	full := p.queue(amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
	require.NoError(t, p.raw.QueueBind(full, "full", exchange, false, nil))
	require.NoError(t, p.publish(exchange, "full", "the one that fits"))

	var refused, accepted atomic.Int64
	concurrently(16, func(i int) {
		for n := range 100 {
			key := []string{"free", "full"}[(i+n)%2]
			err := p.publish(exchange, key, fmt.Sprintf("%d/%d", i, n))
			switch {
			case key == "full":
				assert.ErrorIs(t, err, ErrRefused)
				refused.Add(1)
			default:
				assert.NoError(t, err)
				accepted.Add(1)
			}
		}
	})
	assert.EqualValues(t, 800, refused.Load())
	assert.Len(t, p.drain(free), 800)
	assert.Len(t, p.drain(full), 1)
}

// What is wrong with a message is told before a byte of it is sent; neither channel nor connection suffers.
func TestPublishValidatesFirst(t *testing.T) {
	p := newPubTest(t, PublisherConfig{})
	queue := p.queue(nil)
	require.NoError(t, p.publish("", queue, "before"))
	channel := p.p.current.Load()
	long := strings.Repeat("x", 256)
	for name, tc := range map[string]struct {
		exchange, key string
		msg           amqp.Publishing
		want          string
	}{
		"exchange":     {exchange: long, want: "Exchange"},
		"key":          {key: long, want: "Key"},
		"message id":   {key: queue, msg: amqp.Publishing{MessageId: long}, want: "MessageId"},
		"header kind":  {key: queue, msg: amqp.Publishing{Headers: amqp.Table{"h": []string{"a"}}}, want: "h"},
		"header range": {key: queue, msg: amqp.Publishing{Headers: amqp.Table{"h": int(math.MaxInt32) + 1}}, want: "h"},
		"header size":  {key: queue, msg: amqp.Publishing{Headers: amqp.Table{"h": strings.Repeat("x", 70_000)}}, want: "Headers"},
		"expiration":   {key: queue, msg: amqp.Publishing{Expiration: "soon"}, want: "Expiration"},
		"mode":         {key: queue, msg: amqp.Publishing{DeliveryMode: 3}, want: "DeliveryMode"},
		"user":         {key: queue, msg: amqp.Publishing{UserId: "somebody else"}, want: "UserId"},
		"body":         {key: queue, msg: amqp.Publishing{Body: make([]byte, 16<<20+1)}, want: "Body"},
	} {
		t.Run(name, func(t *testing.T) {
			err := p.p.Publish(within(t, 10*time.Second), tc.exchange, tc.key, tc.msg)
			require.ErrorContains(t, err, tc.want)
			assert.True(t, isPermanent(err))
			assert.NotErrorIs(t, err, ErrUnknown)
		})
	}
	require.NoError(t, p.publish("", queue, "after"))
	assert.Same(t, channel, p.p.current.Load(), "the channel has survived")
	assert.Len(t, p.drain(queue), 2)
}

func TestPublishWithEndedContextSendsNothing(t *testing.T) {
	p := newPubTest(t, PublisherConfig{})
	queue := p.queue(nil)
	require.NoError(t, p.publish("", queue, "a"))
	err := p.p.Publish(canceled(), "", queue, plainText("b"))
	require.ErrorIs(t, err, context.Canceled)
	assert.NotErrorIs(t, err, ErrUnknown)
	assert.Len(t, p.drain(queue), 1)
}

func TestPublishOnAClosedConn(t *testing.T) {
	p := newPubTest(t, PublisherConfig{})
	require.NoError(t, p.conn.Close(within(t, 5*time.Second)))
	err := p.publish("", "q", "a")
	require.ErrorIs(t, err, ErrClosed)
	assert.NotErrorIs(t, err, ErrUnknown)
	require.ErrorIs(t, p.p.PublishBatch(t.Context(), []Message{{Key: "q"}}), ErrClosed)
}

func TestSharedPublishers(t *testing.T) {
	conn, _ := dialed(t, "amqp://127.0.0.1:1", Config{Lazy: true})
	pub := func(cfg PublisherConfig) *Publisher {
		p, err := conn.NewPublisher(cfg)
		require.NoError(t, err)
		return p
	}
	shared := pub(PublisherConfig{Shared: true})
	assert.Same(t, shared, pub(PublisherConfig{Shared: true, Window: 256}), "the default written out")
	assert.NotSame(t, shared, pub(PublisherConfig{Shared: true, Window: 10}))
	assert.NotSame(t, pub(PublisherConfig{}), pub(PublisherConfig{}))
}

func TestPublisherConfigValidation(t *testing.T) {
	conn, _ := dialed(t, "amqp://127.0.0.1:1", Config{Lazy: true})
	_, err := conn.NewPublisher(PublisherConfig{Timeout: -2, ConfirmTimeout: -time.Second, Window: 65536, MaxWaiting: -2, MaxWaitingBytes: -3})
	for _, field := range []string{"Timeout", "ConfirmTimeout", "Window", "MaxWaiting", "MaxWaitingBytes"} {
		assert.ErrorContains(t, err, field+":")
	}
	_, err = conn.NewPublisher(PublisherConfig{Timeout: -1, ConfirmTimeout: -1, Window: 65535, MaxWaiting: -1, MaxWaitingBytes: -1})
	require.NoError(t, err)
}

func TestPublishBoundsWhatWaits(t *testing.T) {
	conn, _ := dialed(t, "amqp://127.0.0.1:1", Config{Lazy: true})
	p, err := conn.NewPublisher(PublisherConfig{MaxWaiting: 3, MaxWaitingBytes: 1000})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	waiting := func(bytes int) {
		calls, sum := p.calls.Load(), p.bytes.Load()
		wg.Go(func() {
			err := p.Publish(ctx, "", "q", amqp.Publishing{Body: make([]byte, bytes)})
			assert.ErrorIs(t, err, context.Canceled)
			assert.NotErrorIs(t, err, ErrUnknown)
		})
		require.Eventually(t, func() bool { return p.calls.Load() > calls && p.bytes.Load() == sum+int64(bytes) }, 5*time.Second, time.Millisecond)
	}
	waiting(5000) // the only one: however large
	require.ErrorIs(t, p.Publish(ctx, "", "q", plainText("one byte too many")), ErrBusy)
	waiting(0)
	waiting(0)
	require.ErrorIs(t, p.Publish(ctx, "", "q", amqp.Publishing{}), ErrBusy)
	require.ErrorIs(t, p.PublishBatch(ctx, []Message{{Key: "q"}}), ErrBusy)
	cancel()
	wg.Wait()
	assert.Zero(t, p.calls.Load())
	assert.Zero(t, p.bytes.Load())
}

// A1: fifty unroutable publishes, nobody reads returns, siblings are busy.
func TestA1UnroutableBesideBusySiblings(t *testing.T) {
	p := newPubTest(t, PublisherConfig{})
	queue := p.queue(nil)
	require.NoError(t, p.publish("", queue, "warm"))
	ctx, cancel := context.WithCancel(t.Context())
	var siblings sync.WaitGroup
	var slowest, sent atomic.Int64
	for range 4 {
		siblings.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				assert.NoError(t, p.publish("", queue, "sibling"))
				sent.Add(1)
				for took := int64(time.Since(began)); took > slowest.Load(); {
					slowest.Store(took)
				}
			}
		})
	}
	concurrently(50, func(i int) {
		var returned *ReturnedError
		assert.ErrorAs(t, p.publish("", queue+".missing", fmt.Sprint(i)), &returned)
	})
	// A question on a channel of its own, while siblings publish: the connection's reader is not held up.
	_, err := p.conn.Inspect(within(t, 5*time.Second), queue)
	require.NoError(t, err)
	cancel()
	siblings.Wait()
	assert.Positive(t, sent.Load())
	assert.Less(t, time.Duration(slowest.Load()), 4*time.Second, "a full channel of returns would hold them up for 5 s")
}

// A10: nine publishes, the fifth to an exchange that does not exist.
func TestA10MissingExchangeInTheMiddle(t *testing.T) {
	for _, known := range []bool{false, true} {
		t.Run(fmt.Sprintf("seen before=%v", known), func(t *testing.T) {
			p := newPubTest(t, PublisherConfig{})
			queue := p.queue(nil)
			missing := queue + ".missing"
			if known { // it was there at the pre-check and has been deleted since
				require.NoError(t, p.raw.ExchangeDeclare(missing, "fanout", true, false, false, false, nil))
				require.ErrorAs(t, p.publish(missing, "", "x"), new(*ReturnedError))
				require.NoError(t, p.raw.ExchangeDelete(missing, false, false))
			}
			concurrently(9, func(i int) {
				exchange, key := "", queue
				if i == 4 {
					exchange, key = missing, ""
				}
				err := p.p.Publish(within(t, 10*time.Second), exchange, key, amqp.Publishing{MessageId: fmt.Sprint(i), Body: []byte(fmt.Sprint(i))})
				if i != 4 {
					assert.NoError(t, err)
					return
				}
				var refusal *amqp.Error
				if assert.ErrorAs(t, err, &refusal) {
					assert.Equal(t, amqp.NotFound, refusal.Code)
				}
				assert.NotErrorIs(t, err, ErrUnknown)
			})
			got := p.bodies(queue)
			assert.Len(t, got, 8)
			assert.NotContains(t, got, "4")
		})
	}
}
