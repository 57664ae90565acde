package pubsub_test

import (
	"slices"
	"strconv"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/pubsub"
)

// A message that closes the connection of whoever is sent it goes to all: the group handles every other one, with only that
// dead-lettered, and the live subscription is there again afterwards, with one queue, however its channels were spread over
// connections meanwhile.
func TestUnreadableMessage(t *testing.T) {
	const good = 60
	s := newSetup(t)
	p := s.publisher()
	var durable, live inbox
	sub := s.group("group")
	sub.DeliveryLimit = 4
	s.subscribe(s.conn, sub, durable.handle, pubsub.SubscriberConfig{Concurrency: 2})
	s.listen(s.conn, s.live(), live.handle, pubsub.SubscriberConfig{Concurrency: 2, OnGap: live.onGap})

	raw, err := s.broker.Dial(t).Channel()
	require.NoError(t, err)
	publish(t, p, 0, good/2)
	require.NoError(t, raw.Publish(s.exchange.Name, "", false, false, amqp.Publishing{MessageId: "deep", Headers: nested(60), DeliveryMode: amqp.Persistent}))
	publish(t, p, good/2, good)
	durable.reaches(t, good)
	testenv.Eventually(t, patience, func() bool { return s.broker.Queue(t, sub.DeadLetterQueue()).Ready == 1 }, "the guilty one dead-lettered")

	next := good
	testenv.Eventually(t, patience, func() bool {
		publish(t, p, next, next+1)
		next++
		return slices.ContainsFunc(live.all(), func(id string) bool { n, _ := strconv.Atoi(id); return n >= good })
	}, "the live subscription is back")
	testenv.Eventually(t, patience, func() bool { return len(s.queues(s.exchange.Name+".live")) == 1 }, "with one queue")
	durable.reaches(t, next)
	t.Logf("live: %d messages of %d, %d gaps", live.distinct(), next, len(live.reported()))
	require.NotEmpty(t, live.reported())
}

func nested(levels int) amqp.Table {
	t := amqp.Table{"end": "here"}
	for range levels - 1 {
		t = amqp.Table{"in": t}
	}
	return t
}
