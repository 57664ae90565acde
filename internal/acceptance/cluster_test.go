package acceptance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
)

// Chaos in a cluster of three: the leader of a quorum queue is killed under load, then the next one, so that no majority
// is left, and then they come back. Nothing confirmed is lost, and nothing hangs. One round in the suite, many in
// make chaos.
func TestChaosQuorum(t *testing.T) {
	length := quorumChaosLength(t)
	q := newQuorumTest(t)
	began := time.Now()
	for round := 0; round == 0 || time.Since(began) < length; round++ {
		q.startLoads()
		first := q.killLeader()
		second := q.killMajority()
		q.bringBack(first)
		q.verify(q.stopLoads())
		if length > 0 {
			q.cluster.Start(second)
		}
	}
	q.close()
}

// quorumChaosLength is how long new rounds begin: 0, so that there is but one, 5 minutes in make chaos, or what
// WARREN_CHAOS says.
func quorumChaosLength(t *testing.T) time.Duration {
	t.Helper()
	switch value := os.Getenv("WARREN_CHAOS"); value {
	case "":
		return 0
	case "1":
		return 5 * time.Minute
	default:
		length, err := time.ParseDuration(value)
		require.NoError(t, err)
		return length
	}
}

const (
	// confirmTimeout is that of the loads' publishers, callLimit the deadline of each of their calls, and slack what a
	// call may take beyond that on a machine that is killing and booting brokers.
	confirmTimeout = 2 * time.Second
	callLimit      = 8 * time.Second
	slack          = 2 * time.Second
	// recovery is how long a cluster may take to serve a queue again once it can.
	recovery = 20 * time.Second
)

// quorumTest is a quorum queue on a cluster and loads on it.
type quorumTest struct {
	t       *testing.T
	cluster *testenv.NodeCluster
	queue   string
	admin   *reconnect.Conn // declares and drains
	loads   []*load

	headless []span // in this round: when the queue had no leader, or no majority to find one
}

// newQuorumTest starts a cluster and prepares two loads, one on the node of the queue's leader and one on another.
func newQuorumTest(t *testing.T) *quorumTest {
	t.Helper()
	testenv.NoLeaks(t)
	q := &quorumTest{t: t, cluster: testenv.Cluster(t), queue: testenv.Name(t, "q")}
	q.admin = q.dial(0, "admin")
	require.NoError(t, q.admin.Declare(q.within(recovery), reconnect.Topology{Queues: []reconnect.Queue{{Name: q.queue}}}))
	leader := q.cluster.AwaitLeader(q.queue)
	for i, name := range []string{"on-leader", "elsewhere"} {
		conn := q.dial((leader+i)%len(q.cluster.URLs()), name)
		p, err := conn.NewPublisher(reconnect.PublisherConfig{ConfirmTimeout: confirmTimeout})
		require.NoError(t, err)
		q.loads = append(q.loads, &load{name: name, queue: q.queue, conn: conn, p: p})
	}
	return q
}

func (q *quorumTest) within(d time.Duration) context.Context {
	q.t.Helper()
	ctx, cancel := context.WithTimeout(q.t.Context(), d)
	q.t.Cleanup(cancel)
	return ctx
}

// dial connects to the given node; after a loss the Conn may go to any.
func (q *quorumTest) dial(node int, name string) *reconnect.Conn {
	q.t.Helper()
	hosts := q.cluster.Hosts()
	var dialer net.Dialer
	var anywhere atomic.Bool
	cfg := reconnect.Config{
		Name:        testenv.Name(q.t, name),
		Hosts:       slices.Delete(slices.Clone(hosts), node, node+1),
		DialTimeout: 3 * time.Second,
		BackoffMax:  500 * time.Millisecond,
		Logger:      testenv.Logger(q.t.Output()),
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if address != hosts[node] && !anywhere.Load() {
				return nil, errors.New("only one node is allowed so far")
			}
			return dialer.DialContext(ctx, network, address)
		},
	}
	conn, err := reconnect.Dial(q.within(recovery), q.cluster.URL(node), cfg)
	require.NoError(q.t, err)
	anywhere.Store(true)
	q.t.Cleanup(func() { _ = conn.Close(context.Background()) }) // when the test ends early
	return conn
}

// close closes the Conns, all of them idle now.
func (q *quorumTest) close() {
	q.t.Helper()
	require.NoError(q.t, q.admin.Close(q.within(recovery)))
	for _, l := range q.loads {
		require.NoError(q.t, l.conn.Close(q.within(recovery)), l.name)
	}
}

// span is a time; to is zero while it lasts.
type span struct{ from, to time.Time }

// killLeader kills the node with the queue's leader, and publishing goes on: the others find a new one in 0.3 to 0.7 s.
// Once in some twenty times the queue confirms nothing for longer than a publish waits, though it has a leader, and
// then the publishes of that time end in doubt; verify sees to it that they do in no other.
func (q *quorumTest) killLeader() int {
	q.t.Helper()
	q.progress(100)
	leader := q.cluster.AwaitLeader(q.queue)
	began := time.Now()
	q.cluster.Kill(leader)
	q.cluster.AwaitLeader(q.queue)
	elected := time.Since(began)
	q.t.Logf("leader %d killed, another one found after %v", leader, elected.Round(time.Millisecond))
	q.progress(500)
	q.headless = []span{{began, time.Now()}}
	for _, l := range q.loads {
		q.t.Logf("%s: slowest confirmation %v, %d in doubt", l.name, l.slowest().Round(time.Millisecond), len(l.failed()))
	}
	return leader
}

// killMajority kills a second node. Publishes to the queue end in doubt; everything else goes on on the last node.
func (q *quorumTest) killMajority() int {
	q.t.Helper()
	victim := q.cluster.AwaitLeader(q.queue)
	before := map[*load]int{}
	for _, l := range q.loads {
		before[l] = len(l.failed())
	}
	q.headless = append(q.headless, span{from: time.Now()})
	q.cluster.Kill(victim)
	q.cluster.AwaitNoMajority(q.queue)
	for _, l := range q.loads {
		testenv.Eventually(q.t, callLimit+slack, func() bool { return len(l.failed()) >= before[l]+2*callers }, "%s: publishes end", l.name)
	}
	q.othersGoOn()
	q.closesInTime()
	return victim
}

// othersGoOn uses the loads' own publishers for a queue that the last node has, and looks at their Conns.
func (q *quorumTest) othersGoOn() {
	q.t.Helper()
	ch, err := q.cluster.Broker(q.cluster.Up()).Dial(q.t).Channel()
	require.NoError(q.t, err)
	healthy, err := ch.QueueDeclare("", false, true, false, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeClassic})
	require.NoError(q.t, err)
	for _, l := range q.loads {
		began := time.Now()
		for range 100 {
			require.NoError(q.t, l.p.Publish(q.within(recovery), "", healthy.Name, amqp.Publishing{}), l.name)
		}
		q.t.Logf("%s: 100 publishes elsewhere took %v", l.name, time.Since(began).Round(time.Millisecond))
		require.NoError(q.t, l.conn.Ping(q.within(recovery)), l.name)
		require.Equal(q.t, "connected", l.conn.State()[0].Phase, l.name)
	}
}

// closesInTime closes a Conn while publishes wait for a confirmation that does not come.
func (q *quorumTest) closesInTime() {
	q.t.Helper()
	const bound = time.Second
	conn := q.dial(q.cluster.Up(), "closing")
	p, err := conn.NewPublisher(reconnect.PublisherConfig{})
	require.NoError(q.t, err)
	outcomes := make(chan error, callers)
	for range callers {
		go func() { outcomes <- p.Publish(context.Background(), "", q.queue, amqp.Publishing{}) }()
	}
	broker := q.cluster.Broker(q.cluster.Up())
	testenv.Eventually(q.t, recovery, func() bool {
		conns := broker.Connections(q.t, conn.Config().Name)
		return len(conns) == 1 && conns[0].Channels == 1
	}, "the publisher has its channel")
	require.NoError(q.t, conn.Ping(q.within(recovery)), "the broker has the messages, or at least some")
	began := time.Now()
	err = conn.Close(q.within(bound))
	require.ErrorIs(q.t, err, context.DeadlineExceeded, "it gave up on them")
	require.Less(q.t, time.Since(began), bound+slack)
	doubtful := 0
	for range callers {
		select {
		case err := <-outcomes:
			require.Error(q.t, err)
			if errors.Is(err, reconnect.ErrUnknown) {
				doubtful++
			}
		case <-time.After(slack):
			q.t.Fatal("a publish outlives its Conn")
		}
	}
	require.Positive(q.t, doubtful)
}

// bringBack starts one node, with which there is a majority again.
func (q *quorumTest) bringBack(node int) {
	q.t.Helper()
	began := time.Now()
	q.cluster.Start(node)
	booted := time.Since(began)
	q.progress(500)
	q.headless[len(q.headless)-1].to = time.Now()
	q.t.Logf("node %d came back in %v, publishing had resumed after %v", node, booted.Round(time.Millisecond),
		time.Since(began).Round(time.Millisecond))
}

// progress waits until so many more messages have been confirmed to each load.
func (q *quorumTest) progress(more int) {
	q.t.Helper()
	for _, l := range q.loads {
		before := l.confirmed()
		testenv.Eventually(q.t, recovery, func() bool { return l.confirmed() >= before+more }, "%s: publishing goes on", l.name)
	}
}

func (q *quorumTest) startLoads() {
	for _, l := range q.loads {
		l.start()
		q.t.Cleanup(func() { l.end() }) // when the test ends early
	}
}

// stopLoads ends the loads and returns what became of their messages.
func (q *quorumTest) stopLoads() []sending {
	var all []sending
	for _, l := range q.loads {
		all = append(all, l.end()...)
	}
	return all
}

// verify drains the queue and compares.
func (q *quorumTest) verify(sent []sending) {
	q.t.Helper()
	arrived := q.drain()
	var confirmed, doubtful, notSent, duplicates int
	for _, s := range sent {
		n := arrived[s.body]
		duplicates += max(n-1, 0)
		assert.Less(q.t, s.took(), callLimit+slack, "%s outlived its context", s.body)
		switch {
		case s.err == nil:
			confirmed++
			assert.Positive(q.t, n, "%s was confirmed and is lost", s.body)
			continue
		case errors.Is(s.err, reconnect.ErrUnknown):
			doubtful++
		default:
			notSent++
			assert.ErrorIs(q.t, s.err, context.DeadlineExceeded)
			assert.Zero(q.t, n, "%s arrived, although: %v", s.body, s.err)
		}
		assert.True(q.t, slices.ContainsFunc(q.headless, s.during), "failed while there was a leader: %v", s.err)
	}
	q.t.Logf("%d confirmed, %d in doubt, %d not sent, %d duplicates", confirmed, doubtful, notSent, duplicates)
	assert.Positive(q.t, doubtful)
}

// drain takes all messages out of the queue and returns how often each body came.
func (q *quorumTest) drain() map[string]int {
	q.t.Helper()
	ready := q.cluster.Broker(q.cluster.AwaitLeader(q.queue)).Queue(q.t, q.queue).Ready
	ch, err := q.admin.Channel(q.within(recovery))
	require.NoError(q.t, err)
	defer ch.Close()
	deliveries, err := ch.Consume(q.queue, "", true, false, false, false, nil)
	require.NoError(q.t, err)
	arrived := make(map[string]int, ready)
	late := time.After(time.Minute)
	for range ready {
		select {
		case d, ok := <-deliveries:
			require.True(q.t, ok, "the channel was lost")
			arrived[string(d.Body)]++
		case <-late:
			q.t.Fatalf("%d of %d messages came", len(arrived), ready)
		}
	}
	return arrived
}

// sending is a message of a load and its outcome.
type sending struct {
	body       string
	began, end time.Time
	err        error
}

func (s sending) took() time.Duration { return s.end.Sub(s.began) }

func (s sending) during(t span) bool { return s.end.After(t.from) && s.began.Before(t.to) }

// callers is how many goroutines a load has.
const callers = 4

// load publishes as fast as it is confirmed.
type load struct {
	name, queue string
	conn        *reconnect.Conn
	p           *reconnect.Publisher

	halt    context.CancelFunc
	running sync.WaitGroup
	rounds  int

	mu   sync.Mutex
	sent []sending
}

func (l *load) start() {
	ctx, halt := context.WithCancel(context.Background())
	l.halt = halt
	l.rounds++
	l.sent = nil
	for i := range callers {
		l.running.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				l.publish(fmt.Sprintf("%s/%d/%d/%d", l.name, l.rounds, i, n))
			}
		})
	}
}

func (l *load) publish(body string) {
	ctx, cancel := context.WithTimeout(context.Background(), callLimit)
	defer cancel()
	s := sending{body: body, began: time.Now()}
	s.err = l.p.Publish(ctx, "", l.queue, amqp.Publishing{Body: []byte(body)})
	s.end = time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent = append(l.sent, s)
}

// end ends the load and returns all it has sent.
func (l *load) end() []sending {
	l.halt()
	l.running.Wait()
	return l.sent
}

func (l *load) confirmed() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, s := range l.sent {
		if s.err == nil {
			n++
		}
	}
	return n
}

func (l *load) failed() []sending {
	l.mu.Lock()
	defer l.mu.Unlock()
	var failed []sending
	for _, s := range l.sent {
		if s.err != nil {
			failed = append(failed, s)
		}
	}
	return failed
}

func (l *load) slowest() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	var d time.Duration
	for _, s := range l.sent {
		d = max(d, s.took())
	}
	return d
}
