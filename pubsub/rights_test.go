package pubsub_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/pubsub"
	"github.com/warrenmq/warren/reconnect"
)

// The rights that the package comment names are enough; without the one to configure a live queue Run says what is
// forbidden, at once.
func TestRights(t *testing.T) {
	s := newSetup(t)
	sub := s.group("group")
	event, queue, dlx := s.exchange.Name, sub.Queue, testenv.Name(t, "dlx")
	dlq := sub.DeadLetterQueue()
	require.NoError(t, s.conn.Declare(t.Context(), s.exchange.Topology()))

	as := func(configure, write, read string) *reconnect.Conn {
		t.Helper()
		user, on := testenv.Name(t, "user"), *s
		on.url = s.broker.AddUser(t, user, testenv.Secret())
		s.broker.SetPermissions(t, user, configure, write, read)
		return on.dial(reconnect.Config{Name: testenv.Name(t, "limited")})
	}
	publishes := func(conn *reconnect.Conn) {
		t.Helper()
		p, err := pubsub.NewPublisher(conn, s.exchange, reconnect.PublisherConfig{})
		require.NoError(t, err)
		require.NoError(t, p.Publish(t.Context(), message(0)))
	}
	receives := func(subscriber *pubsub.Subscriber, err error, in *inbox) {
		t.Helper()
		require.NoError(t, err)
		stop := run(t, subscriber)
		publishes(s.conn)
		in.reaches(t, 1)
		require.NoError(t, stop())
	}
	publishes(as("^"+event+"$", "^"+event+"$", "^$"))

	var in inbox
	conn := as("^("+event+"|"+queue+"|"+dlq+")$", "^("+queue+"|amq\\.default)$", "^("+event+"|"+queue+")$")
	subscriber, err := pubsub.NewSubscriber(conn, sub, in.handle, pubsub.SubscriberConfig{})
	receives(subscriber, err, &in)

	own := s.group("own")
	own.DeadLetterExchange = dlx
	s.deleteExchange(dlx)
	in = inbox{}
	conn = as("^("+event+"|"+own.Queue+"|"+own.DeadLetterQueue()+"|"+dlx+")$", "^("+own.Queue+"|"+own.DeadLetterQueue()+"|"+dlx+")$", "^("+event+"|"+own.Queue+"|"+dlx+")$")
	subscriber, err = pubsub.NewSubscriber(conn, own, in.handle, pubsub.SubscriberConfig{})
	receives(subscriber, err, &in)

	in = inbox{}
	names := event + "\\.live\\..*"
	subscriber, err = pubsub.NewLiveSubscriber(as("^("+event+"|"+names+")$", "^"+names+"$", "^("+event+"|"+names+")$"), s.live(), in.handle, pubsub.SubscriberConfig{})
	receives(subscriber, err, &in)

	for what, conn := range map[string]*reconnect.Conn{
		"queue":   as("^"+event+"$", "^"+names+"$", "^("+event+"|"+names+")$"),
		"binding": as("^("+event+"|"+names+")$", "^"+names+"$", "^"+names+"$"),
	} {
		subscriber, err = pubsub.NewLiveSubscriber(conn, s.live(), in.handle, pubsub.SubscriberConfig{})
		require.NoError(t, err)
		var refused *reconnect.TopologyError
		require.ErrorAs(t, subscriber.Run(t.Context()), &refused)
		require.Contains(t, refused.Entity, what+` "`+event)
	}
}
