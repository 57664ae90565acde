package topic_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/routing/topic"
)

// The article's case: order.cancelled.eu reaches order.# and *.*.eu, and not payment.failed.#.
func TestEvents(t *testing.T) {
	s := newSetup(t)
	var orders, europe, failures, live keys
	const last = "end.of.test"
	s.subscribe(s.group("orders", "order.#", last), orders.handle)
	s.subscribe(s.group("europe", "*.*.eu", last), europe.handle)
	s.subscribe(s.group("failures", "payment.failed.#", last), failures.handle)
	s.subscribe(topic.Subscription{Exchange: s.exchange, Patterns: []string{"#"}}, live.handle)
	p := s.publisher()
	sent := []string{"order.created.us", "order.cancelled.eu", "payment.failed.eu", "payment.failed.card.us"}
	for _, key := range append(sent, last) {
		require.NoError(t, p.PublishJSON(t.Context(), key, map[string]string{"key": key}))
	}
	require.Equal(t, []string{"order.created.us", "order.cancelled.eu"}, orders.last(t, last))
	require.Equal(t, []string{"order.cancelled.eu", "payment.failed.eu"}, europe.last(t, last))
	require.Equal(t, []string{"payment.failed.eu", "payment.failed.card.us"}, failures.last(t, last))
	require.Equal(t, sent, live.last(t, last))

	require.NoError(t, p.Publish(t.Context(), "refund.issued.us", amqp.Publishing{}), "the live one takes all")
	require.Equal(t, sent, live.last(t, "refund.issued.us")[:4])
}

// A key that no pattern matches is told to its publisher, unless an alternate exchange takes it.
func TestUnroutable(t *testing.T) {
	s := newSetup(t)
	var orders keys
	s.subscribe(s.group("orders", "order.#", "*.order"), orders.handle)
	p := s.publisher()
	var returned *reconnect.ReturnedError
	require.ErrorAs(t, p.Publish(t.Context(), "payment.failed", amqp.Publishing{MessageId: "m"}), &returned)
	require.Equal(t, "payment.failed", returned.Key)
	require.Equal(t, s.exchange.Name, returned.Exchange)
	require.NoError(t, p.Publish(t.Context(), "order.order", amqp.Publishing{}), "both patterns match")
	require.NoError(t, p.Publish(t.Context(), "order.end", amqp.Publishing{}))
	require.Equal(t, []string{"order.order"}, orders.last(t, "order.end"), "and it comes once")
}

// Match and the broker agree on thousands of random pairs, and on those that are special.
func TestMatchAgreesWithTheBroker(t *testing.T) {
	const patterns, keys = 70, 110
	s := newSetup(t)
	r := rand.New(rand.NewPCG(rand.Uint64(), 7))
	ch, err := s.broker.Dial(t).Channel()
	require.NoError(t, err)
	require.NoError(t, s.conn.Declare(t.Context(), s.exchange.Topology()))
	exchange := s.exchange.Name

	bound := map[string]string{} // queue by pattern
	for _, pattern := range randoms(r, []string{"", "#", "*", "a", "*.#", "#.*", "#.#", "a..b", ".", "a*", "*a.#"}, []string{"a", "b", "*", "*", "#", ""}, 6, patterns) {
		if strings.Count("."+pattern+".", ".#.") > 2 {
			continue // a broker from 4.3.5 on takes no more; overlapping ones are counted too low, but are not more than it takes
		}
		q, err := ch.QueueDeclare("", false, false, true, false, nil)
		require.NoError(t, err)
		require.NoError(t, ch.QueueBind(q.Name, pattern, exchange, false, nil), "pattern %q", pattern)
		bound[pattern] = q.Name
	}
	published := randoms(r, []string{"", ".", "a", "*", "#", "a.b", "..", "A"}, []string{"a", "b", "c", "", "*", "#"}, 7, keys)
	require.NoError(t, ch.Confirm(false))
	for _, key := range published {
		done, err := ch.PublishWithDeferredConfirm(exchange, key, false, false, amqp.Publishing{})
		require.NoError(t, err)
		require.True(t, done.Wait())
	}
	matched, pairs := 0, 0
	for pattern, queue := range bound {
		got := map[string]bool{}
		for {
			d, ok, err := ch.Get(queue, true)
			require.NoError(t, err)
			if !ok {
				break
			}
			require.False(t, got[d.RoutingKey], "one copy per queue")
			got[d.RoutingKey] = true
		}
		for _, key := range published {
			require.Equal(t, got[key], topic.Match(pattern, key), "pattern %q, key %q: the broker says %v", pattern, key, got[key])
			pairs++
		}
		matched += len(got)
	}
	t.Logf("RabbitMQ %s: %d pairs, %d of them match", s.broker.Version(), pairs, matched)
	require.Greater(t, pairs, 4000)
	require.Greater(t, matched, pairs/50)
}

// randoms are the given ones and random ones, n in all and each once.
func randoms(r *rand.Rand, special, words []string, most, n int) []string {
	out := special
	seen := map[string]bool{}
	for _, s := range out {
		seen[s] = true
	}
	for len(out) < n {
		parts := make([]string, 1+r.IntN(most))
		for i := range parts {
			parts[i] = words[r.IntN(len(words))]
		}
		if s := strings.Join(parts, "."); !seen[s] {
			seen[s] = true
			out = append(out, s)
		}
	}
	return out
}

// The mux gives each key to the most specific pattern; a key without one ends in the dead-letter queue.
func TestMux(t *testing.T) {
	var got []string
	note := func(pattern string) topic.Handler {
		return func(context.Context, amqp.Delivery) error { got = append(got, pattern); return nil }
	}
	mux := topic.Mux{}
	for _, pattern := range []string{"order.created.eu", "order.created.*", "order.*.eu", "order.#", "*.failed.#", "#.eu"} {
		mux[pattern] = note(pattern)
	}
	for _, tt := range []struct{ key, pattern string }{
		{"order.created.eu", "order.created.eu"}, {"order.created.us", "order.created.*"}, {"order.cancelled.eu", "order.*.eu"},
		{"order.cancelled.us", "order.#"}, {"order", "order.#"}, {"payment.failed.eu", "*.failed.#"}, {"refund.eu", "#.eu"}, {"order.failed", "order.#"},
	} {
		got = nil
		require.NoError(t, mux.Handle(t.Context(), amqp.Delivery{RoutingKey: tt.key}))
		require.Equal(t, []string{tt.pattern}, got, tt.key)
	}
	mux["nil"] = nil
	for _, key := range []string{"refund.us", "", "nil"} {
		err := mux.Handle(t.Context(), amqp.Delivery{RoutingKey: key, MessageId: "m-1"})
		require.ErrorContains(t, err, "m-1")
		var permanent interface{ Permanent() bool }
		require.ErrorAs(t, err, &permanent)
		require.True(t, permanent.Permanent())
	}
	failure := errors.New("no")
	require.Equal(t, failure, topic.Mux{"#": func(context.Context, amqp.Delivery) error { return failure }}.Handle(t.Context(), amqp.Delivery{}))
	require.Equal(t, []string{"#.eu", "*.failed.#", "order.#"}, topic.Mux{"order.#": nil, "*.failed.#": nil, "#.eu": nil}.Patterns())
}

func TestMuxOnABroker(t *testing.T) {
	s := newSetup(t)
	var created, cancelled keys
	mux := topic.Mux{"order.created.*": created.handle, "order.#": cancelled.handle}
	sub := s.group("orders", mux.Patterns()...)
	sub.Patterns = append(sub.Patterns, "refund.#") // bound, and not in the mux
	s.subscribe(sub, mux.Handle)
	p := s.publisher()
	for _, key := range []string{"order.created.eu", "refund.issued", "order.cancelled.eu", "order.created.us"} {
		require.NoError(t, p.Publish(t.Context(), key, amqp.Publishing{}))
	}
	require.Equal(t, []string{"order.created.eu"}, created.last(t, "order.created.us"))
	require.Empty(t, cancelled.last(t, "order.cancelled.eu"))
	testenv.Eventually(t, patience, func() bool { return s.broker.Queue(t, sub.DeadLetterQueue()).Ready == 1 }, "the unknown one dead-lettered")
}

// All faults are reported at once, each by its field.
func TestFaults(t *testing.T) {
	s := newSetup(t)
	_, err := topic.NewSubscriber(s.conn, topic.Subscription{
		Exchange: topic.Exchange{Alternate: strings.Repeat("x", 256)}, Patterns: []string{"a..b", "ok", "order*", "#.#.#", strings.Repeat("x", 256)},
		Obsolete: []string{"ok", strings.Repeat("y", 256)}, MaxLength: -1,
	}, nil, topic.SubscriberConfig{Prefetch: -1})
	require.Error(t, err)
	for _, part := range []string{"topic: subscriber", "Exchange.Name: empty", "Exchange.Alternate: 256 bytes", "Queue: empty", `Patterns: number 1, "a..b": word 2 is empty`,
		`number 3, "order*"`, "number 4", "number 5", `Obsolete: number 1, "ok", is one of Patterns`, "Obsolete: number 2", "MaxLength: -1", "Handler: missing"} {
		require.ErrorContains(t, err, part)
	}
	_, err = topic.NewSubscriber(s.conn, topic.Subscription{Exchange: s.exchange, Queue: "q"}, new(keys).handle, topic.SubscriberConfig{})
	require.ErrorContains(t, err, "Patterns: none")
}
