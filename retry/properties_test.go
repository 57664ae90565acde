package retry_test

import (
	"context"
	"errors"
	"maps"
	"net/url"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/retry"
	"github.com/warrenmq/warren/workqueue"
)

// everything is a message with every property set, and headers of every kind, some of which belong to brokers.
func everything(user string) amqp.Publishing {
	return amqp.Publishing{
		Headers: amqp.Table{
			"text": "größe", "bytes": []byte{0, 255}, "int64": int64(1 << 40), "int32": int32(-7), "bool": true, "float": 0.25,
			"time": time.Unix(1_700_000_000, 0).UTC(), "list": []any{"a", int64(1), amqp.Table{"b": nil}}, "table": amqp.Table{"a": amqp.Table{"b": "c"}},
			"nothing": nil, "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		},
		ContentType: "application/json", ContentEncoding: "identity", DeliveryMode: amqp.Persistent, Priority: 9,
		CorrelationId: "correlation", ReplyTo: "replies", Expiration: "3600000", MessageId: "id", Timestamp: time.Unix(1_700_000_000, 0),
		Type: "payment", UserId: user, AppId: "shop", Body: []byte(`{"amount":42}`),
	}
}

// asFirst is what is compared: d without what the transport or the Retrier says of this delivery.
func asFirst(d amqp.Delivery) amqp.Delivery {
	d.Acknowledger, d.ConsumerTag, d.DeliveryTag, d.Redelivered = nil, "", 0, false
	d.Timestamp = d.Timestamp.UTC()
	h := maps.Clone(d.Headers)
	maps.DeleteFunc(h, func(name string, _ any) bool {
		switch name {
		case "warren-attempt", "warren-first-failure", "warren-last-failure", "warren-error":
			return true
		}
		return false
	})
	d.Headers = h
	return d
}

// P49: a handler sees a message that comes back as it saw it first, whichever way it came.
func TestEverythingSurvives(t *testing.T) {
	t.Parallel()
	for name, topic := range map[string]bool{"from the queue's producer": false, "from a topic exchange": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSetup(t)
			v := newVisits()
			s.start(s.retrier(quick).Handle(v.failing(3)), workqueue.WorkerConfig{})
			u, err := url.Parse(s.url)
			require.NoError(t, err)
			exchange, key := "", s.queue.Name
			if topic {
				exchange, key = s.exchange(amqp.ExchangeTopic, "payment.*"), "payment.card"
			}
			msg := everything(u.User.Username())
			s.raw(exchange, key, msg)
			testenv.Eventually(t, patience, func() bool { return len(v.of("id")) == 3 }, "three attempts")
			runs := v.of("id")
			want := asFirst(runs[0].Delivery)
			require.Equal(t, exchange, want.Exchange)
			require.Equal(t, key, want.RoutingKey)
			require.Equal(t, u.User.Username(), want.UserId)
			require.Equal(t, "3600000", want.Expiration)
			require.EqualValues(t, 9, want.Priority)
			require.Equal(t, msg.Body, want.Body)
			require.Len(t, want.Headers, len(msg.Headers))
			for i, run := range runs[1:] {
				require.Equal(t, want, asFirst(run.Delivery), "attempt %d", i+2)
			}
			s.empty(quick)
		})
	}
}

// The same up to the dead-letter queue, what the copy carries itself and what it carries in headers.
func TestEverythingReachesTheDeadLetterQueue(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	v := newVisits()
	s.start(s.retrier(quick).Handle(v.failing(always)), workqueue.WorkerConfig{})
	x := s.exchange(amqp.ExchangeTopic, "payment.*")
	u, err := url.Parse(s.url)
	require.NoError(t, err)
	msg := everything(u.User.Username())
	s.raw(x, "payment.card", msg)
	dead := s.drain(s.queue.DeadLetterQueue(), 1)[0]
	require.Len(t, v.of("id"), quick.MaxAttempts)
	for name, value := range asFirst(v.of("id")[0].Delivery).Headers {
		require.Equal(t, value, dead.Headers[name], name)
	}
	for name, want := range map[string]any{
		"warren-exchange": x, "warren-routing-key": "payment.card", "warren-user-id": u.User.Username(), "warren-expiration": "3600000",
		"warren-attempt": int64(4), "warren-reason": "exhausted",
	} {
		require.Equal(t, want, dead.Headers[name], name)
	}
	require.Empty(t, dead.Expiration, "or it would not stay there")
	require.Empty(t, dead.UserId)
	require.EqualValues(t, amqp.Persistent, dead.DeliveryMode)
	require.EqualValues(t, 9, dead.Priority)
	for _, same := range [][2]string{{msg.ContentType, dead.ContentType}, {msg.ContentEncoding, dead.ContentEncoding},
		{msg.CorrelationId, dead.CorrelationId}, {msg.ReplyTo, dead.ReplyTo}, {msg.MessageId, dead.MessageId}, {msg.Type, dead.Type},
		{msg.AppId, dead.AppId}, {string(msg.Body), string(dead.Body)}} {
		require.Equal(t, same[0], same[1])
	}
	require.Equal(t, msg.Timestamp.UTC(), dead.Timestamp.UTC())
	for name := range dead.Headers {
		require.False(t, strings.HasPrefix(name, "x-") && name != "x-delivery-count", "%s is left from the way", name) // that: of our Get
	}
}

// And beyond: sent back from the dead-letter queue it is again what it was, on its first attempt, as often as one likes.
func TestEverythingSurvivesRedrives(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]retry.Policy{"after delays": quick, "at once": {MaxAttempts: 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSetup(t)
			v := newVisits()
			attempts := policy.MaxAttempts
			s.start(s.retrier(policy).Handle(v.failing(2*attempts+2)), workqueue.WorkerConfig{}) // the second after the second time
			x := s.exchange(amqp.ExchangeTopic, "payment.*")
			u, err := url.Parse(s.url)
			require.NoError(t, err)
			msg := everything(u.User.Username())
			msg.Headers["CC"] = []any{"elsewhere"}
			s.raw(x, "payment.card", msg)
			letters, err := retry.NewDeadLetters(s.conn, s.queue.Name)
			require.NoError(t, err)
			for times := range 2 {
				testenv.Eventually(t, patience, func() bool {
					return len(v.of("id")) == (times+1)*attempts && s.depth(s.queue.Name) == 0 && s.depth(s.queue.DeadLetterQueue()) == 1
				}, "given up")
				n, err := letters.Redrive(s.within(patience), retry.Selection{})
				require.NoError(t, err)
				require.Equal(t, 1, n)
			}
			want := 2*attempts + 2
			if attempts == 1 {
				want = 3 // given up a third time
			}
			testenv.Eventually(t, patience, func() bool { return len(v.of("id")) == want }, "%d runs", want)
			first := asFirst(v.of("id")[0].Delivery)
			require.Equal(t, x, first.Exchange)
			for i, run := range v.of("id") {
				require.Equal(t, first, asFirst(run.Delivery), "run %d", i+1)
				require.Equal(t, i%attempts+1, run.Attempt)
				if run.Attempt == 1 {
					require.Equal(t, retry.Info{Attempt: 1}, run.Info)
				}
			}
			s.empty(policy)
		})
	}
}

// P49: what comes in as transient is persistent from its first failure on, and a message without an id has one.
func TestCopiesArePersistentAndHaveAnID(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	seen := make(chan amqp.Delivery, 3)
	s.start(s.retrier(quick).Handle(func(_ context.Context, d amqp.Delivery) error {
		seen <- d
		if d.MessageId == "" || retry.InfoOf(d).Attempt < 3 {
			return errors.New("no")
		}
		return nil
	}), workqueue.WorkerConfig{})
	s.raw("", s.queue.Name, amqp.Publishing{DeliveryMode: amqp.Transient})
	require.Empty(t, receive(t, seen, "first").MessageId)
	second, third := receive(t, seen, "second"), receive(t, seen, "third")
	require.NotEmpty(t, second.MessageId)
	require.Equal(t, second.MessageId, third.MessageId)
	require.EqualValues(t, amqp.Persistent, second.DeliveryMode)
}

// A18, P48, P49: what a message has in other queues stays as it is, whatever happens to its copy in ours.
func TestA18OtherQueuesSeeItOnce(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	v := newVisits()
	s.start(s.retrier(quick).Handle(v.failing(3)), workqueue.WorkerConfig{})
	x := s.exchange(amqp.ExchangeTopic, "orders.#")
	ch, err := s.broker.Dial(t).Channel()
	require.NoError(t, err)
	others := map[string]string{} // by what made them get the message
	for _, why := range []string{"same key", "CC", "BCC"} {
		others[why] = testenv.Name(t, "other")
		_, err := ch.QueueDeclare(others[why], true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
		require.NoError(t, err)
		t.Cleanup(func() { s.broker.DeleteQueue(t, others[why]) })
	}
	require.NoError(t, ch.QueueBind(others["same key"], "orders.*", x, false, nil))
	require.NoError(t, ch.QueueBind(others["CC"], "copy", x, false, nil))
	require.NoError(t, ch.QueueBind(others["BCC"], "blind", x, false, nil))
	s.raw(x, "orders.eu", amqp.Publishing{MessageId: "m", Headers: amqp.Table{
		"CC": []any{"copy", others["CC"]}, "BCC": []any{"blind", others["BCC"]}}}) // as keys of x, and of the default exchange
	testenv.Eventually(t, patience, func() bool { return len(v.of("m")) == 3 }, "three attempts")
	s.empty(quick)
	for why, queue := range others {
		require.Equal(t, 1, s.depth(queue), why)
	}
	for _, run := range v.of("m") {
		require.Equal(t, x, run.Exchange)
		require.Equal(t, "orders.eu", run.RoutingKey)
		require.Equal(t, []any{"copy", others["CC"]}, run.Delivery.Headers["CC"], "the handler still sees it")
	}
	require.Len(t, v.of("m"), 3)
}

// F52: an Expiration that has passed since the first failure ends the retries, as it would have ended the waiting.
func TestExpirationEndsTheRetries(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	policy := retry.Policy{InitialDelay: time.Second}
	v := newVisits()
	s.start(s.retrier(policy).Handle(v.failing(always)), workqueue.WorkerConfig{})
	s.raw("", s.queue.Name, amqp.Publishing{MessageId: "m", Expiration: "3000"})
	dead := s.drain(s.queue.DeadLetterQueue(), 1)[0]
	require.Equal(t, "expired", dead.Headers["warren-reason"])
	require.Equal(t, "3000", dead.Headers["warren-expiration"])
	runs := v.of("m")
	require.GreaterOrEqual(t, len(runs), 1)
	require.LessOrEqual(t, len(runs), 2, "the third would have begun 6 s after the first failure")
	for i, run := range runs[1:] {
		require.GreaterOrEqual(t, run.at.Sub(runs[i].at), time.Second, "its delay is not cut short")
	}
}
