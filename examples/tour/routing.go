package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/routing/direct"
	"github.com/warrenmq/warren/routing/topic"
)

// stage is what a chapter on routing needs: somebody who listens, on a connection of the chapter's own.
func (t *tour) stage(ctx context.Context, name string, play func(ctx context.Context, a *audience) error) (err error) {
	conn, err := reconnect.Dial(ctx, t.url, reconnect.Config{Name: t.name(name), Logger: t.logger()})
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	a := newAudience(conn)
	defer func() { err = errors.Join(err, a.close()) }()
	return play(ctx, a)
}

// directRouting is the chapter on exact keys.
func directRouting(ctx context.Context, t *tour) error {
	return t.stage(ctx, "orders", func(ctx context.Context, a *audience) error {
		exchange := direct.Exchange{Name: t.name("orders")}
		t.step("Each queue says which keys it wants")
		t.say("An order is created, cancelled, or its payment fails. Who hears of it:")
		services := []struct {
			name string
			keys []string
		}{
			{"fulfillment", []string{"order.created"}},
			{"audit", []string{"order.created", "order.cancelled"}},
			{"alerts", []string{"order.payment-failed"}},
		}
		leaveAudit := func() error { return nil }
		for _, s := range services {
			sub := direct.Subscription{Exchange: exchange, Queue: t.name("orders." + s.name), Keys: s.keys}
			l, err := direct.NewSubscriber(a.conn, sub, a.note(s.name), direct.SubscriberConfig{})
			leave, err := a.add(ctx, sub, l, err)
			if err != nil {
				return err
			}
			if s.name == "audit" {
				leaveAudit = leave
			}
		}
		publisher, err := direct.NewPublisher(a.conn, exchange, reconnect.PublisherConfig{})
		if err != nil {
			return err
		}
		const each = 10
		if err := publisher.PublishBatch(ctx, rounds(each, "order.created", "order.cancelled", "order.payment-failed")); err != nil {
			return err
		}
		for _, s := range services {
			if err := a.await(ctx, each*len(s.keys), s.name); err != nil {
				return err
			}
			n, _ := a.count(s.name)
			t.say("   %-12s %s", s.name, strings.Join(s.keys, ", "))
			t.figure("messages for "+s.name, n, each*len(s.keys))
		}

		t.step("What nobody wants is told to its sender")
		t.say("A key with a typing error, and one that audit used to want: its new version lists it as obsolete, so it is unbound.")
		if err := leaveAudit(); err != nil {
			return err
		}
		sub := direct.Subscription{Exchange: exchange, Queue: t.name("orders.audit"), Keys: []string{"order.created"}, Obsolete: []string{"order.cancelled"}}
		l, err := direct.NewSubscriber(a.conn, sub, a.note("audit"), direct.SubscriberConfig{})
		if _, err := a.add(ctx, sub, l, err); err != nil {
			return err
		}
		returned := 0
		for _, key := range []string{"order.creatd", "order.cancelled"} {
			var e *reconnect.ReturnedError
			if err := publisher.Publish(ctx, key, amqp.Publishing{}); errors.As(err, &e) {
				returned++
			}
		}
		t.figure("publishes that returned an error", returned, 2)
		return nil
	})
}

// rounds are messages with each of the keys, n times.
func rounds(n int, keys ...string) (msgs []reconnect.Message) {
	for i := range n * len(keys) {
		msgs = append(msgs, reconnect.Message{Key: keys[i%len(keys)], Publishing: amqp.Publishing{MessageId: strconv.Itoa(i)}})
	}
	return msgs
}

// topicRouting is the chapter on patterns.
func topicRouting(ctx context.Context, t *tour) error {
	return t.stage(ctx, "events", func(ctx context.Context, a *audience) error {
		patterns := []string{"order.#", "*.*.eu", "payment.failed.#"}
		keys := []string{"order.created.us", "order.cancelled.eu", "payment.failed.eu", "payment.failed.card.us"}
		exchange := topic.Exchange{Name: t.name("events")}
		t.step("Each queue says which patterns it wants")
		t.say("Keys are words with dots between. In a pattern, * is one word and # any number of them:")
		for i, pattern := range patterns {
			sub := topic.Subscription{Exchange: exchange, Queue: t.name(fmt.Sprintf("events.%d", i)), Patterns: []string{pattern}}
			l, err := topic.NewSubscriber(a.conn, sub, a.note(pattern), topic.SubscriberConfig{})
			if _, err := a.add(ctx, sub, l, err); err != nil {
				return err
			}
		}
		publisher, err := topic.NewPublisher(a.conn, exchange, reconnect.PublisherConfig{})
		if err != nil {
			return err
		}
		if err := publisher.PublishBatch(ctx, rounds(1, keys...)); err != nil {
			return err
		}
		agree := 0
		t.say("   %-24s %s", "", strings.Join(patterns, "   "))
		rows := make([]string, len(keys))
		for _, pattern := range patterns {
			if err := a.await(ctx, matching(pattern, keys), pattern); err != nil {
				return err
			}
			got := a.keys(pattern)
			for i, key := range keys {
				mark := " "
				if heard(got, key) {
					mark = "x"
				}
				if heard(got, key) == topic.Match(pattern, key) {
					agree++
				}
				rows[i] += fmt.Sprintf("%-*s", len(pattern)+3, mark)
			}
		}
		for i, key := range keys {
			t.say("   %-24s %s", key, strings.TrimRight(rows[i], " "))
		}
		t.figure("copies in all", total(a, patterns), 6)
		t.figure("pairs where topic.Match says the same", agree, len(patterns)*len(keys))
		return nil
	})
}

func matching(pattern string, keys []string) (n int) {
	for _, key := range keys {
		if topic.Match(pattern, key) {
			n++
		}
	}
	return n
}

func heard(keys []string, key string) bool { return count(keys, key) > 0 }

func total(a *audience, who []string) int {
	n := 0
	for _, w := range who {
		got, _ := a.count(w)
		n += got
	}
	return n
}
