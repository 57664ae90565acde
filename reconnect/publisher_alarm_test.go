package reconnect

import (
	"context"
	"errors"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// A2, of a publisher: under an alarm calls end with their contexts, and say whether anything was sent.
func TestA2PublishUnderAnAlarm(t *testing.T) {
	node := testenv.Node(t)
	p := newPubTestAt(t, node.Broker, node.URL(), Config{}, PublisherConfig{})
	queue := p.queue(nil)
	require.NoError(t, p.publish("", queue, "before"))
	quick, err := p.conn.NewPublisher(PublisherConfig{FailFast: true})
	require.NoError(t, err)
	require.NoError(t, quick.Publish(t.Context(), "", queue, plainText("before")))
	node.Alarm(true)

	// The broker may tell only at the next publish: then that one is written already.
	p.p.Publish(within(t, 300*time.Millisecond), "", queue, plainText("first"))
	testenv.Eventually(t, 5*time.Second, func() bool { return phase(p.conn, publishingLink) == phaseBlocked }, "the link is blocked")

	began := time.Now()
	err = p.p.Publish(within(t, 300*time.Millisecond), "", queue, plainText("not sent"))
	require.ErrorIs(t, err, ErrBlocked)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, ErrUnknown)
	took(t, began, 300*time.Millisecond, "the publish")

	err = quick.Publish(t.Context(), "", queue, plainText("not sent"))
	require.ErrorIs(t, err, ErrBlocked)
	require.NotErrorIs(t, err, ErrUnknown)

	err = p.p.PublishBatch(within(t, 300*time.Millisecond), []Message{{Key: queue}, {Key: queue}})
	require.ErrorIs(t, err, ErrBlocked)
	require.NotErrorIs(t, err, ErrUnknown)
	require.Len(t, err, 2)

	waiting := make(chan error, 1)
	go func() { waiting <- p.publish("", queue, "waits") }()
	testenv.Eventually(t, 5*time.Second, func() bool { return p.p.calls.Load() == 1 }, "it waits")
	node.Alarm(false)
	require.NoError(t, receive(t, waiting, 10*time.Second, "publishing goes on by itself"))
	got := p.bodies(queue)
	assert.Equal(t, 1, got["waits"])
	assert.NotContains(t, got, "not sent")
}

// What was written before the alarm was known is in doubt.
func TestPublishWrittenWhenTheAlarmComes(t *testing.T) {
	t.Parallel()
	p, proxy, queue := proxied(t, PublisherConfig{})
	proxy.FreezeToClient()
	done := make(chan error, 1)
	go func() { done <- p.p.Publish(within(t, 3*time.Second), "", queue, plainText("written")) }()
	testenv.Eventually(t, 5*time.Second, func() bool { return p.broker.Queue(t, queue).Ready == 1 }, "it is written") // a slot is taken before
	// The notice reaches the client, the confirmation does not: the broker does not read.
	p.p.current.Load().session.setBlocked(amqp.Blocking{Active: true, Reason: "low on memory"})
	err := receive(t, done, 10*time.Second, "the outcome")
	require.ErrorIs(t, err, ErrUnknown)
	require.ErrorIs(t, err, ErrBlocked)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// Room in the buffer is waited for by context, and what waits for it is not sent: the peer takes nothing.
func TestPublishWaitsForRoomByContext(t *testing.T) {
	p, proxy, queue := proxied(t, PublisherConfig{MaxWaitingBytes: -1})
	proxy.Freeze()
	body := make([]byte, 1<<20)
	var sent, waited int
	results := make(chan error, 40)
	concurrently(40, func(int) {
		msg := plainText("")
		msg.Body = body
		results <- p.p.Publish(within(t, 500*time.Millisecond), "", queue, msg)
	})
	for range 40 {
		err := <-results
		require.ErrorIs(t, err, context.DeadlineExceeded)
		if errors.Is(err, ErrUnknown) {
			sent++
		} else {
			waited++
		}
	}
	assert.Positive(t, sent)
	assert.Positive(t, waited)
	assert.Less(t, sent, 20, "the buffer is bounded, sockets hold a few MiB")
	proxy.Heal()
	require.NoError(t, p.publish("", queue, "after"))
	assert.Len(t, p.drain(queue), sent+1, "what was called not sent was not sent")
}
