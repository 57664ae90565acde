package reconnect

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// A function that publishes by hand can end the publishing link as well, each time it runs: that costs the others two losses,
// and then only its own connection.
func TestPublishingFunctionThatEndsTheConnectionIsContained(t *testing.T) {
	t.Parallel()
	broker := testenv.Shared(t)
	c, log := dialed(t, broker.URL(), Config{})
	p, err := c.NewPublisher(PublisherConfig{})
	require.NoError(t, err)
	queue := testenv.Name(t, "queue")
	t.Cleanup(func() { broker.DeleteQueue(t, queue) })
	require.NoError(t, c.Declare(within(t, 20*time.Second), Topology{Queues: []Queue{{Name: queue}}}))

	var runs atomic.Int32
	supervisePublishing(t, c, "good", func(ctx context.Context, ch *amqp.Channel) error {
		runs.Add(1)
		<-ctx.Done()
		return nil
	})
	testenv.Eventually(t, 20*time.Second, func() bool { return phase(c, "good") == "running" }, "the good one runs")
	codes := make(chan int, 100)
	supervisePublishing(t, c, "bad", func(ctx context.Context, ch *amqp.Channel) error {
		closed := ch.NotifyClose(make(chan *amqp.Error, 1))
		if err := ch.Publish("", queue, false, true, amqp.Publishing{}); err != nil { // immediate, which RabbitMQ does not have
			return err
		}
		select {
		case e := <-closed:
			codes <- e.Code
			return e
		case <-ctx.Done(): // or a moment later
		}
		e := <-closed
		if e == nil { // a close of ours
			return nil
		}
		codes <- e.Code
		return e
	})
	require.Equal(t, amqp.NotImplemented, receive(t, codes, 20*time.Second, "the broker's answer"))
	testenv.Eventually(t, 20*time.Second, func() bool {
		return strings.Contains(reasonOf(c, "bad"), `function "bad" makes the broker end the connection; apart`)
	}, "the state names it")
	testenv.Eventually(t, 20*time.Second, func() bool {
		return phase(c, "good") == "running" && reasonOf(c, "good") == "" && apartLinks(c.publishing) <= 1
	}, "the good one is back on the link")
	before := runs.Load()
	for range 4 {
		receive(t, codes, 20*time.Second, "it is tried again")
		require.NoError(t, p.Publish(within(t, 20*time.Second), "", queue, amqp.Publishing{}))
	}
	require.Equal(t, before, runs.Load(), "which costs the good one nothing")
	require.Equal(t, 2, strings.Count(log.String(), `msg="connection lost" `+"connection="+c.Config().Name+" link=publishing error"), log)
	require.Equal(t, 1, strings.Count(log.String(), "level=ERROR"), log)

	began := time.Now()
	require.NoError(t, c.Close(within(t, 10*time.Second)))
	took(t, began, time.Second, "Close")
	testenv.Eventually(t, 10*time.Second, func() bool { return len(broker.Connections(t, c.Config().Name)) == 0 }, "the broker lists none any more")
}

// A loss of the one link that somebody is to blame for moves nobody who is on the other.
func TestGuiltOnOneLinkIsNoneOnTheOther(t *testing.T) {
	t.Parallel()
	c, _ := dialed(t, testenv.Shared(t).URL(), Config{})
	run := func(ctx context.Context, _ *amqp.Channel) error { <-ctx.Done(); return nil }
	supervise(t, c, "consumes", Topology{}, run)
	supervisePublishing(t, c, "publishes", run)
	for _, name := range []string{"consumes", "publishes"} {
		testenv.Eventually(t, 20*time.Second, func() bool { return phase(c, name) == "running" }, "%s runs", name)
	}
	for range 2 {
		c.publishing.onBlame(&amqp.Error{Code: amqp.InternalError, Server: true})
	}
	s, _ := c.publishing.now()
	s.sock.Kill()
	testenv.Eventually(t, 20*time.Second, func() bool {
		return phase(c, "publishes") == "running" && strings.HasPrefix(reasonOf(c, "publishes"), "apart")
	}, "the one is moved")
	require.Empty(t, reasonOf(c, "consumes"), "the other is not")
}

func apartLinks(l *link) int {
	l.unreadable.mu.Lock()
	defer l.unreadable.mu.Unlock()
	return len(l.unreadable.links)
}

func supervisePublishing(t *testing.T, c *Conn, name string, fn func(context.Context, *amqp.Channel) error) {
	go func() {
		if err := c.SupervisePublishing(t.Context(), name, Topology{}, fn); err != nil && !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}()
}
