package reconnect

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// reader is a supervised function that knows nothing of internal/report: it acknowledges what comes, until its context
// ends.
type reader struct {
	name, queue string
	topology    Topology
	runs        atomic.Int32
	took        chan string
}

func (r *reader) run(ctx context.Context, ch *amqp.Channel) error {
	r.runs.Add(1)
	if err := ch.Qos(1, 0, false); err != nil {
		return err
	}
	deliveries, err := ch.Consume(r.queue, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case d, ok := <-deliveries:
			if !ok {
				return errors.New("deliveries ended")
			}
			r.took <- string(d.Body)
			if err := d.Ack(false); err != nil {
				return err
			}
		}
	}
}

// A queue without a delivery limit keeps a message that nobody can read. Its function stays apart; one of another queue
// goes back to the link, on which those of exclusive queues have stayed, whether their topology names them or not.
func TestUnreadableMessageOfAPlainFunction(t *testing.T) {
	t.Parallel()
	broker := testenv.Shared(t)
	c, log := dialed(t, broker.URL(), Config{})
	bad, good, named, unnamed := testenv.Name(t, "bad"), testenv.Name(t, "good"), testenv.Name(t, "named"), testenv.Name(t, "unnamed")
	for _, queue := range []string{bad, good} {
		t.Cleanup(func() { broker.DeleteQueue(t, queue) })
	}
	classic := func(name string) Topology { return Topology{Queues: []Queue{{Name: name, Type: "classic"}}} }
	exclusive := func(name string) Topology { return Topology{Queues: []Queue{{Name: name, Exclusive: true}}} }
	require.NoError(t, c.Declare(within(t, 20*time.Second), classic(bad)))
	require.NoError(t, c.Declare(within(t, 20*time.Second), exclusive(unnamed)))

	readers := []*reader{{name: "bad", queue: bad, topology: classic(bad)}, {name: "good", queue: good, topology: classic(good)},
		{name: "named", queue: named, topology: exclusive(named)}, {name: "unnamed", queue: unnamed}}
	for _, r := range readers {
		r.took = make(chan string, 10)
		go func() {
			if err := c.Supervise(t.Context(), r.name, r.topology, r.run); err != nil && !errors.Is(err, ErrClosed) {
				t.Errorf("%s: %v", r.name, err)
			}
		}()
		testenv.Eventually(t, 20*time.Second, func() bool { return phase(c, r.name) == "running" }, "%s runs", r.name)
	}

	raw, err := broker.Dial(t).Channel()
	require.NoError(t, err)
	send := func(queue string, msg amqp.Publishing) {
		require.NoError(t, raw.PublishWithContext(t.Context(), "", queue, true, false, msg))
	}
	headers := amqp.Table{}
	for range 60 {
		headers = amqp.Table{"in": headers}
	}
	send(bad, amqp.Publishing{Headers: headers})
	testenv.Eventually(t, 20*time.Second, func() bool {
		return strings.Contains(reasonOf(c, "bad"), `function "bad" holds a message that cannot be read`)
	}, "the state tells whose message it is")
	testenv.Eventually(t, 20*time.Second, func() bool {
		shared, apart := 0, 0
		for _, ch := range broker.Channels(t, c.Config().Name+"/consuming") {
			if strings.HasSuffix(ch.Connection, "/apart") {
				apart++
			} else if ch.Consumers > 0 {
				shared++
			}
		}
		return shared == 3 && apart <= 1
	}, "all but one are on the link")
	for _, r := range readers[1:] {
		send(r.queue, amqp.Publishing{Body: []byte(r.name)})
		require.Equal(t, r.name, receive(t, r.took, 20*time.Second, r.name))
		require.Empty(t, reasonOf(c, r.name), r.name)
	}
	require.Equal(t, 2, strings.Count(log.String(), `msg="connection lost" `+"connection="+c.Config().Name+" link=consuming error"), log)
	errors := slices.DeleteFunc(strings.SplitAfter(log.String(), "\n"), func(line string) bool {
		return !strings.Contains(line, "level=ERROR") || strings.Contains(line, "RESOURCE_LOCKED") // a broker frees an exclusive queue after its connection
	})
	require.Len(t, errors, 1, log)

	runs := readers[0].runs.Load()
	testenv.Eventually(t, 20*time.Second, func() bool { return readers[0].runs.Load() > runs+1 }, "it is tried again")

	testenv.Eventually(t, 20*time.Second, func() bool { // a purge leaves what is in a reader's hands just now
		_, err := raw.QueuePurge(bad, false)
		require.NoError(t, err)
		q := broker.Queue(t, bad)
		return q.Ready+q.Unacked == 0
	}, "the message is gone")
	testenv.Eventually(t, 20*time.Second, func() bool { return phase(c, "bad") == "running" }, "it runs, apart")
	require.NotEmpty(t, reasonOf(c, "bad"))
	c.consuming.unreadable.mu.Lock()
	c.consuming.unreadable.guilty[`function "bad"`] = sentence{time.Now(), &unreadableBlame} // instead of a minute
	c.consuming.unreadable.wake()
	c.consuming.unreadable.mu.Unlock()
	testenv.Eventually(t, 20*time.Second, func() bool {
		return phase(c, "bad") == "running" && reasonOf(c, "bad") == "" && len(broker.Connections(t, c.Config().Name+"/consuming/apart")) == 0
	}, "it is back on the link")
	send(bad, amqp.Publishing{Body: []byte("now")})
	require.Equal(t, "now", receive(t, readers[0].took, 20*time.Second, "a good message"))

	began := time.Now()
	require.NoError(t, c.Close(within(t, 10*time.Second)))
	took(t, began, time.Second, "Close")
	testenv.Eventually(t, 10*time.Second, func() bool { return len(broker.Connections(t, c.Config().Name)) == 0 }, "the broker lists none any more")
}

func reasonOf(c *Conn, name string) string {
	for _, s := range c.State() {
		if s.Name == name {
			return s.Reason
		}
	}
	return ""
}

// One that is stopped, or whose Conn is closed, while it is apart closes its connection, also when the broker is frozen.
func TestCloseWhileApart(t *testing.T) {
	t.Parallel()
	broker := testenv.Shared(t)
	proxy := testenv.Proxy(t, broker.URL())
	c, _ := dialed(t, proxy.URL(), Config{})
	queue := testenv.Name(t, "queue")
	t.Cleanup(func() { broker.DeleteQueue(t, queue) })
	c.consuming.unreadable.lostLink(errBadFrame)
	c.consuming.unreadable.lostLink(errBadFrame)
	start := func(ctx context.Context, name string) <-chan error {
		r, done := &reader{name: name, queue: queue, topology: Topology{Queues: []Queue{{Name: queue, Type: "classic"}}}}, make(chan error, 1)
		go func() { done <- c.Supervise(ctx, r.name, r.topology, r.run) }()
		testenv.Eventually(t, 20*time.Second, func() bool { return phase(c, r.name) == "running" }, "%s runs", r.name)
		return done
	}
	ctx, stop := context.WithCancel(t.Context())
	first, second := start(ctx, "first"), start(t.Context(), "second")
	apart := func() int { return len(broker.Connections(t, c.Config().Name+"/consuming/apart")) }
	require.Equal(t, 2, apart())
	require.Contains(t, reasonOf(c, "first"), "until it is known")

	stop()
	require.NoError(t, receive(t, first, 10*time.Second, "stopped"))
	testenv.Eventually(t, 10*time.Second, func() bool { return apart() == 1 }, "one is left")

	proxy.Freeze()
	began := time.Now()
	err := c.Close(within(t, time.Second))
	require.Less(t, time.Since(began), 4*time.Second)
	t.Logf("Close: %v after %v", err, time.Since(began))
	require.ErrorIs(t, receive(t, second, 10*time.Second, "closed"), ErrClosed)
	require.Empty(t, c.consuming.unreadable.links)
}
