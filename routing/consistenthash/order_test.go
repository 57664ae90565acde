package consistenthash_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/routing/consistenthash"
)

// Order per key, whatever happens: three instances, connections cut, one of them stopped in good order and one killed.
func TestOrderPerKey(t *testing.T) {
	for name, p := range map[string]consistenthash.Partitions{"hashed by the publisher": {}, "hashed by the plugin": {Plugin: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p.Count = 8
			testOrderPerKey(t, p)
		})
	}
}

func testOrderPerKey(t *testing.T, p consistenthash.Partitions) {
	const perKey = 200
	s, all, l := newSetup(t, p), keys(50), newLedger()
	s.publish(all, 0, perKey/2)

	var dead atomic.Bool // the killed instance does nothing any more
	handler := func(ctx context.Context, d amqp.Delivery) error {
		l.begin(d)
		return work(ctx, time.Duration(rand.IntN(1500))*time.Microsecond)
	}
	proxy := testenv.Proxy(t, s.broker.URL())
	s.start(s.dial("a"), handler, consistenthash.ConsumerConfig{})
	stopB := s.start(s.dial("b"), handler, consistenthash.ConsumerConfig{Prefetch: 5})
	s.start(s.dialTo(proxy.URL(), "c", reconnect.Config{}), func(ctx context.Context, d amqp.Delivery) error {
		if dead.Load() {
			<-ctx.Done()
			return ctx.Err()
		}
		return handler(ctx, d)
	}, consistenthash.ConsumerConfig{})

	var publishing sync.WaitGroup
	publishing.Go(func() {
		for n := perKey / 2; n < perKey; n += 10 {
			s.publish(all, n, n+10)
		}
	})
	total := len(all) * perKey
	reached := func(n int) {
		t.Helper()
		testenv.Eventually(t, patience, func() bool { return l.count() >= n }, "%d of %d handled", n, total)
	}
	reached(total / 10)
	require.Positive(t, s.broker.CutConnections(t, s.name+"-a"))
	reached(total * 2 / 10)
	require.NoError(t, stopB())
	reached(total * 3 / 10)
	require.Positive(t, s.broker.CutConnections(t, s.name))
	reached(total * 4 / 10)
	s.broker.CloseChannels(t, s.name+"-a")
	reached(total / 2)
	dead.Store(true)
	proxy.Refuse()
	proxy.Cut()
	reached(total)
	publishing.Wait()
	s.settled()
	l.inOrder(t, all, perKey)
	require.Zero(t, s.depth(s.partitions.DeadLetterQueue()))
	t.Logf("%d messages, %d of them begun more than once", total, l.again)
}

// A partition is handed over 30 times while the message at its head fails and fails: what is behind it is neither overtaken nor
// dead-lettered for it. With the usual delivery limit the head itself is, on the way.
func TestFailingHeadAndManyHandOvers(t *testing.T) {
	for name, tt := range map[string]struct{ limit, dead int }{"above the delivery limit": {0, 1}, "below it": {100, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testFailingHead(t, tt.limit, tt.dead)
		})
	}
}

func testFailingHead(t *testing.T, limit, dead int) {
	const handOvers, behind = 30, 20
	s, l := newSetup(t, consistenthash.Partitions{Count: 1, DeliveryLimit: limit}), newLedger()
	s.publish([]string{"k"}, 0, behind+1)
	failed := make(chan struct{}, 1000)
	var mended atomic.Bool
	handler := func(_ context.Context, d amqp.Delivery) error {
		l.begin(d)
		switch {
		case mended.Load():
			return nil
		case string(d.Body) == "0":
			failed <- struct{}{}
			return errors.New("it fails and fails")
		}
		failed <- struct{}{} // the head is gone, and the next one waits for better times
		return notNow{}
	}
	cfg := consistenthash.ConsumerConfig{MaxAttempts: 1000, InitialDelay: 20 * time.Millisecond, MaxDelay: 20 * time.Millisecond}
	stop := s.start(s.dial("0"), handler, cfg)
	for i := range handOvers {
		select {
		case <-failed:
		case <-time.After(patience):
			require.Fail(t, "no attempt in time", "hand-over %d", i)
		}
		next := s.start(s.dial(strconv.Itoa(i+1)), handler, cfg)
		if i%2 == 1 {
			require.Positive(t, s.broker.CutConnections(t, s.name+"-"+strconv.Itoa(i)+"/consuming"))
		}
		require.NoError(t, stop(), "hand-over %d", i)
		stop = next
		for len(failed) > 0 {
			<-failed
		}
	}
	if dead == 0 {
		require.Equal(t, 1, l.count(), "nothing is begun but the head")
	}
	s.deadLettered(dead)
	mended.Store(true)
	s.settled()
	l.inOrder(t, []string{"k"}, behind+1)
	s.deadLettered(dead)
	t.Logf("the head was begun %d times", l.startsOf("k", 0))
}

type notNow struct{}

func (notNow) Error() string             { return "not now" }
func (notNow) NotNow() bool              { return true }
func (notNow) RetryAfter() time.Duration { return 20 * time.Millisecond }

// P34: most messages have one key. They wait in its partition, in order, and the others go on; the counts show it.
func TestOneHotKey(t *testing.T) {
	t.Parallel()
	s, l := newSetup(t, consistenthash.Partitions{Count: 4}), newLedger()
	hot, cold := []string{"hot"}, keys(20)
	at := s.partitions.Of("hot")
	s.publish(hot, 0, 900)
	s.publish(cold, 0, 5)
	looked := make(chan struct{}) // until then the hot one has half of its work before it
	c := s.consumer(s.conn, func(ctx context.Context, d amqp.Delivery) error {
		l.begin(d)
		switch {
		case d.RoutingKey != "hot":
			return nil
		case string(d.Body) == "450":
			select {
			case <-looked:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return work(ctx, time.Millisecond)
	}, consistenthash.ConsumerConfig{})
	run(t, c)
	testenv.Eventually(t, patience, func() bool {
		others := int64(0)
		for i, n := range c.Counts() {
			if i != at {
				others += n
			}
		}
		return others == int64(coldOutside(s.partitions, cold, at)*5)
	}, "the other partitions are done")
	require.Positive(t, s.depth(s.partitions.Queue(at)), "while the hot one is not")
	close(looked)
	s.settled()
	testenv.Eventually(t, patience, func() bool { return sum(c.Counts()) == 1000 }, "all are counted")
	require.GreaterOrEqual(t, c.Counts()[at], int64(900), "the skew is visible")
	l.inOrder(t, hot, 900)
	l.inOrder(t, cold, 5)
}

func coldOutside(p consistenthash.Partitions, keys []string, at int) (n int) {
	for _, key := range keys {
		if p.Of(key) != at {
			n++
		}
	}
	return n
}

func sum(counts []int64) (n int64) {
	for _, c := range counts {
		n += c
	}
	return n
}
