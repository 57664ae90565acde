package testenv_test

import (
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// timed logs how long a fault took.
func timed(t *testing.T, what string, do func()) {
	t.Helper()
	start := time.Now()
	do()
	t.Logf("%s: %v", what, time.Since(start).Round(time.Millisecond))
}

// refused reports whether nothing listens at the node's address.
func refused(n *testenv.FaultNode) bool {
	conn, err := amqp.DialConfig(n.URL(), amqp.Config{Dial: amqp.DefaultDial(time.Second)})
	if err == nil {
		conn.Close()
	}
	return err != nil
}

// holdsOne waits until a queue has one message: a new leader may have to work through the log before it sees that.
func holdsOne(t *testing.T, b *testenv.Broker, queue string) {
	t.Helper()
	testenv.Eventually(t, patience, func() bool { return b.Queue(t, queue).Ready == 1 }, "one message in %s", queue)
}

func TestNodeRestart(t *testing.T) {
	n := testenv.Node(t)
	require.Same(t, n, testenv.Node(t))
	conn := n.Dial(t)
	ch := channel(t, conn)
	require.NoError(t, ch.Confirm(false))
	queue := declare(t, n.Broker, ch)
	publish(t, ch, queue, nil)

	told := conn.NotifyClose(make(chan *amqp.Error, 1))
	timed(t, "stop", n.Stop)
	require.Contains(t, []int{amqp.ConnectionForced, amqp.FrameError}, closed(t, told).Code, "who meets the end of the socket may be before the broker's word")
	require.True(t, refused(n))
	timed(t, "start", n.Start)

	conn = n.Dial(t)
	holdsOne(t, n.Broker, queue)
	lost := conn.NotifyClose(make(chan *amqp.Error, 1))
	timed(t, "kill", n.Kill)
	require.NotEqual(t, amqp.ConnectionForced, closed(t, lost).Code)
	require.True(t, refused(n))
	timed(t, "start after a kill", n.Start)
	holdsOne(t, n.Broker, queue)
}

func TestNodeFreeze(t *testing.T) {
	n := testenv.Node(t)
	conn := n.Dial(t)
	ch := channel(t, conn)
	require.NoError(t, ch.Confirm(false))
	queue := declare(t, n.Broker, ch)

	timed(t, "freeze", n.Freeze)
	require.True(t, refused(n), "accepted by the kernel, answered by nobody")
	confirm, err := ch.PublishWithDeferredConfirm("", queue, false, false, amqp.Publishing{})
	require.NoError(t, err, "the kernel takes the bytes")
	require.False(t, confirmed(t, confirm, quiet))
	timed(t, "thaw", n.Thaw)
	require.True(t, confirmed(t, confirm, patience))
}

func TestNodeAlarm(t *testing.T) {
	n := testenv.Node(t)
	name := testenv.Name(t, "conn")
	conn := n.DialNamed(t, name)
	blocked := conn.NotifyBlocked(make(chan amqp.Blocking, 2))
	ch := channel(t, conn)
	require.NoError(t, ch.Confirm(false))
	queue := declare(t, n.Broker, ch)

	timed(t, "alarm", func() { n.Alarm(true) })
	publish(t, ch, queue, nil) // the broker notices by it that this connection publishes, and takes it still
	require.True(t, blocks(t, blocked))
	confirm, err := ch.PublishWithDeferredConfirm("", queue, false, false, amqp.Publishing{})
	require.NoError(t, err)
	require.False(t, confirmed(t, confirm, quiet))
	require.Equal(t, "blocked", n.Connections(t, name)[0].State)

	timed(t, "end of the alarm", func() { n.Alarm(false) })
	require.False(t, blocks(t, blocked))
	require.True(t, confirmed(t, confirm, patience))
}

// blocks waits for connection.blocked (true) or connection.unblocked.
func blocks(t *testing.T, notify <-chan amqp.Blocking) bool {
	t.Helper()
	select {
	case b := <-notify:
		return b.Active
	case <-time.After(patience):
		t.Fatal("neither blocked nor unblocked")
		return false
	}
}

func TestNodeConsumerTimeout(t *testing.T) {
	n := testenv.Node(t)
	n.ConsumerTimeout(500 * time.Millisecond)
	conn := n.Dial(t)
	ch := channel(t, conn)
	require.NoError(t, ch.Confirm(false))
	queue := declare(t, n.Broker, ch)
	publish(t, ch, queue, nil)
	timedOut := ch.NotifyClose(make(chan *amqp.Error, 1))
	timed(t, "consumer timeout of 0.5 s", func() {
		deliveries, err := ch.Consume(queue, "", false, false, false, false, nil)
		require.NoError(t, err)
		<-deliveries
		require.Equal(t, amqp.PreconditionFailed, closed(t, timedOut).Code)
	})
	require.False(t, conn.IsClosed())
	testenv.Eventually(t, patience, func() bool { return n.Queue(t, queue).Ready == 1 }, "the delivery is back in the queue")
}

func TestNodeMaxMessageSize(t *testing.T) {
	n := testenv.Node(t)
	n.MaxMessageSize(1000)
	ch := channel(t, n.Dial(t))
	require.NoError(t, ch.Confirm(false))
	queue := declare(t, n.Broker, ch)
	publish(t, ch, queue, make([]byte, 1000))
	tooLarge := ch.NotifyClose(make(chan *amqp.Error, 1))
	require.NoError(t, ch.Publish("", queue, false, false, amqp.Publishing{Body: make([]byte, 1001)}))
	require.Equal(t, amqp.PreconditionFailed, closed(t, tooLarge).Code)
}

func TestNodeIsWholeAgain(t *testing.T) {
	for _, tt := range []struct {
		name string
		harm func(*testenv.FaultNode)
	}{
		{"stopped", (*testenv.FaultNode).Stop},
		{"frozen", (*testenv.FaultNode).Freeze},
		{"alarmed and strict", func(n *testenv.FaultNode) {
			n.Alarm(true)
			n.MaxMessageSize(1)
			n.ConsumerTimeout(time.Second)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.harm(testenv.Node(t)) })
		t.Run("after "+tt.name, func(t *testing.T) {
			n := testenv.Node(t)
			ch := channel(t, n.Dial(t))
			require.NoError(t, ch.Confirm(false))
			publish(t, ch, declare(t, n.Broker, ch), []byte("more than one byte"))
		})
	}
}

func TestNodeIsLentToOne(t *testing.T) {
	var holders atomic.Int32
	t.Run("group", func(t *testing.T) {
		for range 4 {
			t.Run("holder", func(t *testing.T) {
				t.Parallel()
				testenv.Node(t)
				require.EqualValues(t, 1, holders.Add(1))
				t.Cleanup(func() { holders.Add(-1) })
			})
		}
	})
}
