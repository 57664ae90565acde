package retry_test

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/retry"
	"github.com/warrenmq/warren/workqueue"
)

// full is a message with every property that a publisher may set, but an expiration.
func full(id string) amqp.Publishing {
	return amqp.Publishing{
		MessageId: id, ContentType: "text/plain", ContentEncoding: "identity", DeliveryMode: 2, Priority: 3, CorrelationId: "c-1",
		ReplyTo: "somewhere", Timestamp: time.Unix(1_700_000_000, 0), Type: "created", UserId: "", AppId: "shop", Body: []byte("body"),
		Headers: amqp.Table{"int": int32(7), "long": int64(8), "text": "t", "bytes": []byte{0, 255}, "bool": true, "float": 1.5,
			"when": time.Unix(1_600_000_000, 0), "list": []any{"a", int64(2)}, "table": amqp.Table{"in": "side"}, "nothing": nil,
			"x-of-their-own": "kept"},
	}
}

// seen is what a handler is shown of a message, without what differs from delivery to delivery.
func seen(d amqp.Delivery) amqp.Delivery {
	d.Acknowledger, d.ConsumerTag, d.DeliveryTag, d.Redelivered, d.MessageCount = nil, "", 0, false, 0
	d.Headers = maps.Clone(d.Headers)
	for _, name := range []string{"warren-attempt", "warren-first-failure", "warren-last-failure", "warren-error", "x-delivery-count"} {
		delete(d.Headers, name)
	}
	return d
}

// Whoever gave a message up, it is shown as it was first delivered, with the reason, and comes back so.
func TestDeadLettersAreShownAsFirstDelivered(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for name, tt := range map[string]struct {
		queue    workqueue.Queue
		policy   retry.Policy
		raw      bool // no Retrier
		handle   retry.Handler
		expire   string
		reason   string
		byBroker bool
		attempts int
		lastErr  string
	}{
		"exhausted": {policy: retry.Policy{MaxAttempts: 3, InitialDelay: time.Millisecond}, handle: func(context.Context, amqp.Delivery) error { return boom },
			reason: "exhausted", attempts: 3, lastErr: "boom"},
		"permanent": {handle: func(context.Context, amqp.Delivery) error { return retry.Permanent(boom) }, reason: "permanent", attempts: 1, lastErr: "boom"},
		"rejected":  {raw: true, handle: func(context.Context, amqp.Delivery) error { return boom }, reason: "rejected", byBroker: true, attempts: 1},
		"rejected after a Retrier": {policy: retry.Policy{InitialDelay: time.Millisecond}, handle: func(_ context.Context, d amqp.Delivery) error {
			if retry.InfoOf(d).Attempt < 2 {
				return boom
			}
			return nil // see below
		}, reason: "rejected", byBroker: true, attempts: 2, lastErr: "boom"},
		"expired":        {queue: workqueue.Queue{TTL: time.Millisecond}, reason: "expired", byBroker: true, attempts: 1},
		"expired itself": {expire: "20", reason: "expired", byBroker: true, attempts: 1},
		"delivery limit": {queue: workqueue.Queue{DeliveryLimit: 2}, raw: true, reason: "delivery_limit", byBroker: true, attempts: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := testenv.Shared(t)
			s := newDeadOn(newSetupOn(t, broker, broker.URL(), tt.queue))
			x := s.exchange("topic", "a.#")
			other := s.other(x, "copy")
			msg := full("m")
			msg.UserId, msg.Expiration = user(t, s.url), tt.expire
			msg.Headers["CC"] = []any{"copy"}
			want := delivered(x, "a.key", msg)

			began := time.Now().Truncate(time.Second)
			h := tt.handle
			if h != nil && !tt.raw {
				h = s.retrier(tt.policy).Handle(h)
			}
			if name == "rejected after a Retrier" {
				inner := h
				h = func(ctx context.Context, d amqp.Delivery) error {
					if err := inner(ctx, d); err != nil || retry.InfoOf(d).Attempt < 2 {
						return err
					}
					return boom // to the loop, which rejects it
				}
			}
			stop := func() error { return nil }
			if h != nil {
				stop = s.start(h, workqueue.WorkerConfig{})
			}
			s.raw(x, "a.key", msg)
			if name == "delivery limit" {
				s.crash(3)
			}
			s.await(1)
			require.NoError(t, stop())

			for letter, err := range s.letters.All(s.within(patience)) {
				require.NoError(t, err)
				require.Equal(t, want, seen(letter.Delivery))
				require.Equal(t, tt.reason, letter.Reason)
				require.Equal(t, tt.byBroker, letter.ByBroker)
				require.Equal(t, tt.attempts, letter.Attempt)
				require.Equal(t, tt.lastErr, letter.LastError)
				require.False(t, letter.FirstFailure.Before(began), "%v before %v", letter.FirstFailure, began)
				require.False(t, letter.LastFailure.Before(letter.FirstFailure))
				require.Error(t, letter.Ack(false), "it is not to be settled")
			}

			s.await(1) // given back
			n, err := s.letters.Redrive(s.within(patience), retry.Selection{IDs: []string{"m"}})
			require.NoError(t, err)
			require.Equal(t, 1, n)
			if tt.queue.TTL > 0 {
				return // it expires again
			}
			got := make(chan amqp.Delivery, 1)
			s.start(s.retrier(retry.Policy{}).Handle(func(_ context.Context, d amqp.Delivery) error { got <- d; return nil }), workqueue.WorkerConfig{})
			d := receive(t, got, "the message again")
			require.Equal(t, want, seen(d))
			require.Equal(t, retry.Info{Attempt: 1}, retry.InfoOf(d))
			if tt.expire == "" {
				require.Len(t, s.take(other), 1, "the copies go to nobody else")
			}
		})
	}
}

// other makes a further queue, bound to an exchange by a key.
func (s *dead) other(exchange, key string) (name string) {
	s.t.Helper()
	name = testenv.Name(s.t, "other")
	ch, err := s.broker.Dial(s.t).Channel()
	require.NoError(s.t, err)
	_, err = ch.QueueDeclare(name, true, false, false, false, amqp.Table{"x-queue-type": "classic"})
	require.NoError(s.t, err)
	require.NoError(s.t, ch.QueueBind(name, key, exchange, false, nil))
	s.t.Cleanup(func() { s.broker.DeleteQueue(s.t, name) })
	return name
}

// delivered is msg as it is delivered.
func delivered(exchange, key string, msg amqp.Publishing) amqp.Delivery {
	return amqp.Delivery{Exchange: exchange, RoutingKey: key, Headers: msg.Headers, ContentType: msg.ContentType,
		ContentEncoding: msg.ContentEncoding, DeliveryMode: msg.DeliveryMode, Priority: msg.Priority, CorrelationId: msg.CorrelationId,
		ReplyTo: msg.ReplyTo, Expiration: msg.Expiration, MessageId: msg.MessageId, Timestamp: msg.Timestamp, Type: msg.Type,
		UserId: msg.UserId, AppId: msg.AppId, Body: msg.Body}
}

func user(t *testing.T, url string) string {
	u, err := amqp.ParseURI(url)
	require.NoError(t, err)
	return u.Username
}

// crash takes the message n times, and loses the channel each time.
func (s *dead) crash(n int) {
	s.t.Helper()
	conn := s.broker.Dial(s.t)
	for range n {
		testenv.Eventually(s.t, patience, func() bool {
			ch, err := conn.Channel()
			require.NoError(s.t, err)
			_, ok, err := ch.Get(s.queue.Name, false)
			require.NoError(s.t, err)
			require.NoError(s.t, ch.Close())
			return ok
		}, "taken")
	}
}
