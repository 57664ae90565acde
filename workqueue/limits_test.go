package workqueue_test

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

// P29: a full queue refuses the new message and keeps the old ones; with room again it takes messages again.
func TestP29FullQueueKeepsTheOld(t *testing.T) {
	t.Parallel()
	s := newSetup(t, workqueue.Queue{MaxLength: 2})
	p := s.producer(reconnect.PublisherConfig{})
	var accepted []string
	testenv.Eventually(t, patience, func() bool {
		id := strconv.Itoa(len(accepted))
		if err := p.Publish(t.Context(), amqp.Publishing{MessageId: id}); err != nil {
			require.ErrorIs(t, err, reconnect.ErrRefused)
			require.NotErrorIs(t, err, reconnect.ErrUnknown)
			return true
		}
		accepted = append(accepted, id)
		return false
	}, "full")
	handled := newRuns()
	s.start(s.conn, func(_ context.Context, d amqp.Delivery) error { handled.add(d); return nil }, workqueue.WorkerConfig{})
	s.settled()
	require.Equal(t, accepted, handled.firsts())
	testenv.Eventually(t, patience, func() bool { return p.Publish(t.Context(), amqp.Publishing{MessageId: "after"}) == nil }, "taken again")
	s.settled()
	require.Equal(t, 1, handled.of("after"))
	require.Zero(t, s.depth(s.queue.DeadLetterQueue()))
}

// P29: a body larger than the broker takes fails alone and at once, while others publish on the same channel.
func TestP29LargerThanTheBrokerTakes(t *testing.T) {
	t.Parallel()
	node := testenv.Node(t)
	node.MaxMessageSize(1000)
	s := newSetupOn(t, node.Broker, node.URL(), workqueue.Queue{})
	p := s.producer(reconnect.PublisherConfig{})
	f := newTraffic(t, 4)
	for i := range 4 {
		f.publisher(i, p, func() time.Duration { return patience })
	}
	for range 20 {
		began := time.Now()
		err := p.Publish(t.Context(), amqp.Publishing{Body: make([]byte, 2000)})
		var refusal *amqp.Error
		require.ErrorAs(t, err, &refusal)
		require.Equal(t, amqp.PreconditionFailed, refusal.Code)
		require.NotErrorIs(t, err, reconnect.ErrUnknown, "it did not arrive, for certain")
		require.Less(t, time.Since(began), 3*time.Second, "took %v", time.Since(began))
	}
	f.stop()
	s.start(s.conn, func(_ context.Context, d amqp.Delivery) error { f.note(d.MessageId, handled); return nil }, workqueue.WorkerConfig{Prefetch: 100})
	s.settled()
	f.verify()
	require.Equal(t, f.count(sent), f.count(confirmed), "nobody else failed")
}

// P29: a body above MaxBody is not sent, and costs nobody a channel; one that comes all the same is dead-lettered without
// being handed to the handler.
func TestP29LargerThanMaxBody(t *testing.T) {
	t.Parallel()
	broker := testenv.Shared(t)
	s := newSetupWith(t, broker, broker.URL(), workqueue.Queue{}, reconnect.Config{MaxBody: 1000})
	p := s.producer(reconnect.PublisherConfig{})
	require.NoError(t, p.Publish(t.Context(), amqp.Publishing{MessageId: "good", Body: make([]byte, 1000)}))
	channels := s.broker.Channels(t, s.name+"/publishing")
	err := p.Publish(t.Context(), amqp.Publishing{Body: make([]byte, 1001)})
	var permanent interface{ Permanent() bool }
	require.ErrorAs(t, err, &permanent)
	require.True(t, permanent.Permanent())
	require.ErrorContains(t, err, "Body: 1001 bytes")
	require.False(t, errors.As(err, new(*amqp.Error)), "the broker was not asked")
	require.Equal(t, channels, s.broker.Channels(t, s.name+"/publishing"))

	s.raw(amqp.Publishing{MessageId: "large", Body: bytes.Repeat([]byte("x"), 1001)})
	handled := newRuns()
	s.start(s.conn, func(_ context.Context, d amqp.Delivery) error { handled.add(d); return nil }, workqueue.WorkerConfig{})
	s.settled()
	require.Equal(t, []string{"good"}, handled.firsts())
	dead := s.takeDead(1)[0]
	require.Equal(t, "large", dead.MessageId)
	require.Len(t, dead.Body, 1001)
}
