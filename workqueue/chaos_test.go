package workqueue_test

import (
	"context"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

// Environment of the chaos test: how long it runs ("1", from make chaos, is the long form), and the seed of the run that is
// to be repeated.
const (
	chaosEnv     = "WARREN_CHAOS"
	chaosSeedEnv = "WARREN_CHAOS_SEED"
)

const (
	shortChaos = 20 * time.Second
	longChaos  = 10 * time.Minute
	// restartTime is what the longest of the faults takes: none is begun when less is left.
	restartTime = 5 * time.Second
)

func chaosLength(t *testing.T) time.Duration {
	t.Helper()
	switch value := os.Getenv(chaosEnv); value {
	case "":
		return shortChaos
	case "1":
		return longChaos
	default:
		length, err := time.ParseDuration(value)
		require.NoError(t, err, chaosEnv)
		return length
	}
}

func chaosSeed(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if value := os.Getenv(chaosSeedEnv); value != "" {
		var err error
		seed, err = strconv.ParseUint(value, 10, 64)
		require.NoError(t, err, chaosSeedEnv)
	}
	t.Logf("to have the same faults again: %s=%d", chaosSeedEnv, seed)
	return seed
}

// Chaos: two Conns with 8 publishers and 8 workers each share a queue, while one fault after the other hits them or
// the broker, in random order, the next one shortly after everything has recovered from the last.
//
// Deleting the queue loses what is in it, by definition. So that this excuses nothing else, the publishers are held up and
// the queue is drained before it is deleted, at which point every message confirmed so far must have been handled.
// Then they go on, and the queue is deleted under their hands. Excused are, by their ids, the messages that were sent
// between the draining and the end of the deletion and that had not been handled by then.
func TestChaos(t *testing.T) {
	testenv.NoLeaks(t)
	length, c := chaosLength(t), newChaos(t)
	goroutines, channels := c.resources()
	began := time.Now()
	c.publish()
	faults := c.faults()
	for n := 0; n < len(faults) || time.Since(began)+restartTime < length; n++ { // each at least once
		if n%len(faults) == 0 {
			c.random.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
		}
		c.strike(faults[n%len(faults)])
	}
	c.traffic.stop()
	c.settled()
	c.asAtTheStart(goroutines, channels)
	inDLQ := c.takeAllDead()
	if length <= shortChaos {
		require.Zero(t, inDLQ, "messages in the dead-letter queue")
	}
	c.traffic.verify()
	t.Logf("%d faults, slowest recovery %v (%s); %d messages excused by a deleted queue, %d in the dead-letter queue",
		c.struck, c.slowest.Round(time.Millisecond), c.slowestAfter, c.lostWithQueue(), inDLQ)

	for _, stop := range c.stops {
		require.NoError(t, stop())
	}
	require.Zero(t, c.depth(c.queue.Name))
}

// P8: the queue is deleted again and again, while the prefetches of many workers grow. On RabbitMQ 3.10 that is when a
// consume or a cancel is answered twice, connections end with 541, and a consumer that was not cancelled in time
// holds on to messages that it never gets.
func TestP8QueueDeletedUnderLoad(t *testing.T) {
	t.Parallel()
	c := newChaosOn(t, testenv.Shared(t))
	c.publish()
	for range 5 {
		c.strike(fault{"delete the queue", c.deleteQueue})
	}
	c.traffic.stop()
	c.settled()
	c.traffic.verify()
	require.Zero(t, c.depth(c.queue.DeadLetterQueue()))
}

// What takes part in it.
const (
	chaosConns    = 2
	chaosPrefetch = 20
	perConn       = 8 // publishers, and workers
)

type chaos struct {
	*setup
	node      *testenv.FaultNode
	random    *rand.Rand
	names     []string // of the Conns
	producers []*workqueue.Producer
	stops     []func() error // of the workers
	traffic   *traffic

	struck       int
	slowest      time.Duration
	slowestAfter string
}

// newChaos is newChaosOn with a node that may be broken.
func newChaos(t *testing.T) *chaos {
	t.Helper()
	node := testenv.Node(t)
	c := newChaosOn(t, node.Broker)
	c.node = node
	return c
}

// newChaosOn starts the workers, and waits until they and the producers work.
func newChaosOn(t *testing.T, broker *testenv.Broker) *chaos {
	t.Helper()
	c := &chaos{setup: newSetupOn(t, broker, broker.URL(), workqueue.Queue{}), random: rand.New(rand.NewPCG(chaosSeed(t), 0))}
	c.traffic = newTraffic(t, chaosConns*perConn+chaosConns)
	for i := range chaosConns {
		// With the heartbeats of one of them a freeze of 2 s is a loss, with those of the other a pause.
		name := c.name + "-" + strconv.Itoa(i)
		conn := c.dialWith(reconnect.Config{Name: name, Heartbeat: time.Duration(i+1) * time.Second})
		p, err := workqueue.NewProducer(conn, c.queue, reconnect.PublisherConfig{})
		require.NoError(t, err)
		c.names, c.producers = append(c.names, name), append(c.producers, p)
		c.stops = append(c.stops, c.start(conn, c.handle, workqueue.WorkerConfig{Concurrency: perConn, Prefetch: chaosPrefetch}))
	}
	c.recovered("the start")
	return c
}

func (c *chaos) handle(_ context.Context, d amqp.Delivery) error {
	c.traffic.note(d.MessageId, handled)
	return nil
}

// publish starts the publishers. Some of their contexts end during the faults, some do not.
func (c *chaos) publish() {
	for i := range chaosConns * perConn {
		random := rand.New(rand.NewPCG(c.random.Uint64(), 0))
		c.traffic.publisher(i, c.producers[i%chaosConns], func() time.Duration {
			return time.Duration(50+random.IntN(5000)) * time.Millisecond
		})
	}
}

// fault is something that goes wrong, once.
type fault struct {
	name string
	do   func()
}

func (c *chaos) faults() []fault {
	const pause = 2 * time.Second
	return []fault{
		{"cut a link", func() { require.Positive(c.t, c.broker.CutConnections(c.t, c.someLink())) }},
		{"close the channels of a link", func() { require.Positive(c.t, c.broker.CloseChannels(c.t, c.someLink())) }},
		{"restart", func() { c.node.Restart() }},
		{"freeze", func() { c.node.Freeze(); c.wait(pause); c.node.Thaw() }},
		{"alarm", func() { c.node.Alarm(true); c.wait(pause); c.node.Alarm(false) }},
		{"delete the queue", c.deleteQueue},
	}
}

// someLink is the connection name of one of the Conns' links.
func (c *chaos) someLink() string {
	return c.names[c.random.IntN(chaosConns)] + []string{"/publishing", "/consuming"}[c.random.IntN(2)]
}

func (c *chaos) wait(d time.Duration) { require.NoError(c.t, work(c.t.Context(), d)) }

// strike has a fault happen and waits for the recovery and some peace.
func (c *chaos) strike(f fault) {
	c.t.Helper()
	began := time.Now()
	f.do()
	over := time.Now()
	c.recovered(f.name)
	took := time.Since(over)
	c.t.Logf("%s: %v, recovered %v later", f.name, over.Sub(began).Round(time.Millisecond), took.Round(time.Millisecond))
	c.struck++
	if took > c.slowest {
		c.slowest, c.slowestAfter = took, f.name
	}
	c.wait(time.Duration(200+c.random.IntN(300)) * time.Millisecond)
}

// deleteQueue deletes the queue under the publishers' hands; see TestChaos.
func (c *chaos) deleteQueue() {
	c.t.Helper()
	c.traffic.paused(func() { c.drained("before the queue is deleted") })
	n := c.traffic.count(confirmed)
	testenv.Eventually(c.t, patience, func() bool { return c.traffic.count(confirmed) > n+20 }, "publishing goes on")
	c.traffic.gone.Store(true)
	c.broker.DeleteQueue(c.t, c.queue.Name)
	c.traffic.each(func(_ func() string, f *fate) {
		if *f&handled == 0 {
			*f |= excused
		}
	})
}

// lostWithQueue is the number of confirmed messages that only the deletion of their queue excuses.
func (c *chaos) lostWithQueue() (n int) {
	c.traffic.each(func(_ func() string, f *fate) {
		if *f&(confirmed|handled|excused) == confirmed|excused {
			n++
		}
	})
	return n
}

// recovered waits until there is one consumer for each worker and messages of each Conn get through.
func (c *chaos) recovered(after string) {
	c.t.Helper()
	testenv.Eventually(c.t, patience, func() bool { return c.broker.Queue(c.t, c.queue.Name).Consumers == chaosConns*perConn },
		"after %s: one consumer per worker", after)
	for i, p := range c.producers {
		number := chaosConns*perConn + i
		testenv.Eventually(c.t, patience, func() bool { return c.traffic.one(number, p, time.Second) == nil }, "after %s: publishing again", after)
	}
	c.traffic.gone.Store(false)
	n := c.traffic.count(handled)
	testenv.Eventually(c.t, patience, func() bool { return c.traffic.count(handled) > n || c.depth(c.queue.Name) == 0 }, "after %s: handling again", after)
}

// drained waits until everything that was confirmed is handled. Nobody publishes meanwhile.
func (c *chaos) drained(when string) {
	c.t.Helper()
	c.settled()
	require.Empty(c.t, c.traffic.missing(), "confirmed and lost, at %s", when)
}

// takeAllDead empties the dead-letter queue into the ledger. What is on its way there is waited for: nothing else may be
// missing.
func (c *chaos) takeAllDead() (n int) {
	c.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		ready := c.depth(c.queue.DeadLetterQueue())
		for _, d := range c.takeDead(ready) {
			c.traffic.note(d.MessageId, dead)
		}
		n += ready
		if len(c.traffic.missing()) == 0 || time.Now().After(deadline) {
			return n
		}
	}
}

// asAtTheStart waits until nothing is left over of what the faults have made.
func (c *chaos) asAtTheStart(goroutines, channels int) {
	c.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		nowGoroutines, nowChannels := c.resources()
		if nowGoroutines <= goroutines && nowChannels == channels {
			return
		}
		require.True(c.t, time.Now().Before(deadline), "goroutines %d, at the start %d; channels %d, at the start %d",
			nowGoroutines, goroutines, nowChannels, channels)
		c.wait(100 * time.Millisecond)
	}
}

// resources are the process's goroutines and the broker's channels of the Conns.
func (c *chaos) resources() (goroutines, channels int) {
	return runtime.NumGoroutine(), len(c.broker.Channels(c.t, c.name))
}
