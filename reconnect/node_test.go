package reconnect

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// Faults of a whole node, one after the other on a node of their own.
func TestNodeFaults(t *testing.T) {
	t.Parallel()
	node := testenv.Node(t)
	t.Run("restart", func(t *testing.T) { testRestart(t, node) })
	t.Run("close during an outage", func(t *testing.T) { testCloseWhileDown(t, node) })
	t.Run("freeze", func(t *testing.T) { testFreeze(t, node) })
	t.Run("alarm", func(t *testing.T) { testAlarm(t, node) })
}

// A5, T8: after a restart, which takes transient things with it, all is as before.
func testRestart(t *testing.T, node *testenv.FaultNode) {
	c, _ := dialed(t, node.URL(), Config{})
	e := testenv.Name(t, "e")
	mine, durable := newConsumer(testenv.Name(t, "mine")), newConsumer(testenv.Name(t, "durable"))
	require.NoError(t, c.Declare(within(t, 10*time.Second), Topology{Exchanges: []Exchange{{Name: e, Kind: "fanout"}}}))
	supervise(t, c, "live", Topology{Queues: []Queue{{Name: mine.queue, Exclusive: true}}, Bindings: []Binding{{Exchange: e, Queue: mine.queue}}}, mine.run)
	supervise(t, c, "durable", Topology{Queues: []Queue{{Name: durable.queue}}, Bindings: []Binding{{Exchange: e, Queue: durable.queue}}}, durable.run)
	receive(t, mine.consuming, 10*time.Second, "consuming")
	receive(t, durable.consuming, 10*time.Second, "consuming")

	node.Stop()
	testenv.Eventually(t, 10*time.Second, func() bool { // the node has ended, which we may only be about to notice
		err := c.Ping(within(t, time.Second))
		for _, what := range []string{"publishing link: not connected", "consuming link: not connected", "live: no channel", "durable: no channel"} {
			if err == nil || !strings.Contains(err.Error(), what) {
				return false
			}
		}
		return true
	}, "Ping names all that is down")
	testenv.Eventually(t, 5*time.Second, func() bool {
		states := c.State()
		return len(states) == 4 && states[0].Attempts > 2 && strings.Contains(states[0].Reason, "dial ")
	}, "the state says why")
	node.Start()
	node.Queue(t, durable.queue) // waits until the queue has a leader, which is the node's affair
	began := time.Now()
	receive(t, mine.consuming, 20*time.Second, "consuming again")
	receive(t, durable.consuming, 20*time.Second, "consuming again")
	took(t, began, 2*time.Second, "coming back after a restart")
	require.NoError(t, raw(t, node.Broker).Publish(e, "", false, false, amqp.Publishing{Body: []byte("again")}))
	require.Equal(t, "again", receive(t, mine.got, 5*time.Second, "a message"))
	require.Equal(t, "again", receive(t, durable.got, 5*time.Second, "a message"))
	require.Equal(t, 1, node.Queue(t, mine.queue).Consumers)
	// Its log has the consumer of before the restart, too, until the queue has noticed that its channel is gone.
	testenv.Eventually(t, 10*time.Second, func() bool { return node.Queue(t, durable.queue).Consumers == 1 }, "one consumer")
	restored(t, c) // the publishing link backs off on its own
}

// A8, P13.
func testCloseWhileDown(t *testing.T, node *testenv.FaultNode) {
	c, _ := dialed(t, node.URL(), Config{})
	node.Stop()
	waiting := make(chan error, 1)
	go func() { waiting <- c.Declare(context.Background(), queueOf("q")) }()
	testenv.Eventually(t, 5*time.Second, func() bool { return phase(c, "publishing") == phaseConnecting }, "noticed")
	began := time.Now()
	require.NoError(t, c.Close(context.Background()))
	took(t, began, 100*time.Millisecond, "Close during an outage")
	require.ErrorIs(t, receive(t, waiting, time.Second, "what waited has ended"), ErrClosed)
	node.Start()
	began = time.Now()
	testenv.Eventually(t, 5*time.Second, func() bool {
		require.Empty(t, node.Connections(t, c.Config().Name), "connected after Close")
		return time.Since(began) > time.Second
	}, "time passes")
}

// A3, P4, P13 with SIGSTOP: the kernel still takes connections and bytes.
func testFreeze(t *testing.T, node *testenv.FaultNode) {
	const heartbeat = time.Second
	c, _ := dialed(t, node.URL(), Config{Heartbeat: heartbeat, DialTimeout: time.Second})
	w := newConsumer(testenv.Name(t, "q"))
	supervise(t, c, "w", queueOf(w.queue), w.run)
	receive(t, w.consuming, 10*time.Second, "consuming")
	var links []*session
	for _, l := range []*link{c.publishing, c.consuming} {
		s, err := l.now()
		require.NoError(t, err)
		links = append(links, s)
	}
	dialing, _ := testConfig(t, Config{Lazy: true})
	other, err := Dial(t.Context(), node.URL(), dialing)
	require.NoError(t, err)

	node.Freeze()
	began := time.Now()
	err = c.Declare(within(t, 300*time.Millisecond), queueOf(testenv.Name(t, "other")))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	took(t, began, 300*time.Millisecond, "a declaration with a context")
	for _, s := range links {
		receive(t, s.lost(), 20*heartbeat, "the loss is noticed")
		took(t, began, 3*heartbeat, "noticing a frozen broker")
	}
	_, err = other.Channel(within(t, 300*time.Millisecond))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	began = time.Now()
	require.NoError(t, other.Close(context.Background()))
	took(t, began, 100*time.Millisecond, "Close during a dial")
	node.Thaw()
	began = time.Now()
	receive(t, w.consuming, 20*time.Second, "consuming again")
	took(t, began, 2*time.Second, "coming back after a freeze")
	testenv.Eventually(t, 10*time.Second, func() bool { return node.Queue(t, w.queue).Consumers == 1 }, "one consumer")
}

// A2, the part of Close, and what an alarm must leave alone.
func testAlarm(t *testing.T, node *testenv.FaultNode) {
	c, _ := dialed(t, node.URL(), Config{})
	closing, _ := dialed(t, node.URL(), Config{})
	q := testenv.Name(t, "q")
	require.NoError(t, c.Declare(within(t, 10*time.Second), queueOf(q)))
	s, err := c.publishing.now()
	require.NoError(t, err)
	running, alarmed, release, ended := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan error, 2)
	publishAndWait := func(ctx context.Context, ch *amqp.Channel) error {
		running <- struct{}{}
		<-alarmed // a publisher is blocked when it publishes
		if err := ch.Publish("", q, false, false, amqp.Publishing{}); err != nil {
			return err
		}
		select {
		case <-release:
			return errors.New("released")
		case <-ctx.Done():
			return nil
		}
	}
	for _, c := range []*Conn{c, closing} {
		go func() { ended <- c.SupervisePublishing(context.Background(), "w", Topology{}, publishAndWait) }()
		receive(t, running, 10*time.Second, "running")
	}
	node.Alarm(true)
	close(alarmed)
	testenv.Eventually(t, 10*time.Second, func() bool {
		return phase(c, "publishing") == phaseBlocked && phase(closing, "publishing") == phaseBlocked
	}, "blocked")

	began := time.Now()
	err = c.Ping(within(t, 5*time.Second))
	require.ErrorIs(t, err, ErrBlocked)
	took(t, began, 100*time.Millisecond, "Ping")
	_, err = s.channel(within(t, 100*time.Millisecond))
	require.ErrorIs(t, err, ErrBlocked)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = c.Inspect(within(t, 5*time.Second), q)
	require.NoError(t, err, "the consuming link is not blocked")
	require.NoError(t, c.Declare(within(t, 5*time.Second), queueOf(testenv.Name(t, "other"))))

	began = time.Now()
	require.NoError(t, closing.Close(within(t, 2*time.Second)))
	took(t, began, 2*time.Second, "Close under an alarm")
	require.ErrorIs(t, receive(t, ended, 5*time.Second, "the function on the closed one"), ErrClosed)

	began = time.Now()
	close(release)
	require.EqualError(t, receive(t, ended, 10*time.Second, "the function returns though its channel cannot be closed"), "released")
	took(t, began, time.Second, "the end of a function under an alarm")
	node.Alarm(false)
	testenv.Eventually(t, 5*time.Second, func() bool { return phase(c, "publishing") == phaseConnected }, "no longer blocked")
	require.NoError(t, c.Ping(within(t, 5*time.Second)))
	now, err := c.publishing.now()
	require.NoError(t, err)
	require.Same(t, s, now, "the alarm cost no connection")
	testenv.Eventually(t, 5*time.Second, func() bool { return len(node.Channels(t, c.Config().Name)) == 0 }, "the channel was closed after all")
}
