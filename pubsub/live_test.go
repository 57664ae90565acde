package pubsub_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/pubsub"
	"github.com/warrenmq/warren/reconnect"
)

// steady publishes messages 0 to n-1 at a steady pace and calls halfway in the middle. It returns when the publish of each began,
// and when it was confirmed: it was routed in between.
func steady(t *testing.T, p *pubsub.Publisher, n int, halfway func()) (begun, confirmed []time.Time) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for i := range n {
		if i == n/2 {
			halfway()
		}
		begun = append(begun, time.Now())
		require.NoError(t, p.Publish(t.Context(), message(i)))
		confirmed = append(confirmed, time.Now())
		<-tick.C
	}
	return begun, confirmed
}

// waiting is how long a message may have waited in a live queue, at most, when that went. That it is missed, too, is told by no gap.
const waiting = 500 * time.Millisecond

// A15, P30: messages come at a steady pace, and the connections are cut in the middle. The durable group misses nothing; the
// live subscription gets what came before and after, and is told of exactly one gap, whose times cover what is missing.
func TestA15CutInTheMiddle(t *testing.T) {
	const n = 100
	s := newSetup(t)
	p := s.publisher()
	var durable, live inbox
	s.subscribe(s.conn, s.group("group"), durable.handle, pubsub.SubscriberConfig{})
	s.listen(s.conn, s.live(), live.handle, pubsub.SubscriberConfig{OnGap: live.onGap})

	began := time.Now()
	begun, confirmed := steady(t, p, n, func() { require.Positive(t, s.broker.CutConnections(t, s.name)) })
	durable.reaches(t, n)
	testenv.Eventually(t, patience, func() bool { got := live.all(); return len(got) > 0 && got[len(got)-1] == ids(n-1, n)[0] }, "the last message")

	got, gaps := live.all(), live.reported()
	require.Len(t, gaps, 1, "gaps reported")
	g := gaps[0]
	t.Logf("live subscription: %d of %d messages, gap of %v after %d of them", len(got), n, g.to.Sub(g.from), g.after)
	require.Equal(t, ids(0, g.after), got[:g.after], "what came before the gap is a prefix")
	require.Equal(t, ids(n-(len(got)-g.after), n), got[g.after:], "what came after it is a suffix")
	require.True(t, g.from.Before(g.to))
	require.True(t, g.from.After(began.Add(-2*time.Second)))
	for i := g.after; i < n-(len(got)-g.after); i++ {
		require.False(t, confirmed[i].Before(g.from.Add(-waiting)), "message %d is missing, and was published %v before the gap", i, g.from.Sub(confirmed[i]))
		require.False(t, begun[i].After(g.to), "message %d is missing, and was published after the gap", i)
	}
}

// P10: after each loss of the connection the queue has a new name and each binding once, and once consuming again what is
// published is received. Old names are not declared again.
func TestP10FreshNameOnEachConnection(t *testing.T) {
	s := newSetup(t)
	p := s.publisher()
	var in inbox
	s.listen(s.conn, s.live(), in.handle, pubsub.SubscriberConfig{OnGap: in.onGap, Concurrency: 3})
	seen := map[string]bool{}
	for cut := range 5 {
		testenv.Eventually(t, patience, func() bool { return len(in.reported()) == cut && len(s.bindings(s.exchange.Name)) == 1 }, "bound again after %d cuts", cut)
		bindings := s.bindings(s.exchange.Name)
		queue := strings.Fields(bindings[0])[0]
		require.False(t, seen[queue], "name used again")
		seen[queue] = true
		testenv.Eventually(t, patience, func() bool { return s.broker.Queue(t, queue).Consumers == 3 }, "all channels on the one queue")
		testenv.Eventually(t, patience, func() bool { return slices.Equal([]string{queue}, s.queues(s.exchange.Name+".live")) }, "no other queue")
		publish(t, p, cut, cut+1)
		in.reaches(t, cut+1)
		s.broker.CutConnections(t, s.name)
	}
}

// P17: nothing that the quick start declares is transient and shared.
func TestP17NothingTransientAndShared(t *testing.T) {
	s := newSetup(t)
	sub := s.group("group")
	s.subscribe(s.conn, sub, new(inbox).handle, pubsub.SubscriberConfig{})
	s.listen(s.conn, s.live(), new(inbox).handle, pubsub.SubscriberConfig{})
	names := append(s.queues(s.exchange.Name), sub.Queue, sub.DeadLetterQueue())
	require.Len(t, names, 3)
	for _, name := range names {
		q := s.broker.Queue(t, name)
		require.True(t, q.Exists, name)
		require.True(t, q.Durable || q.Exclusive, "%s is transient and shared", name)
		require.False(t, q.AutoDelete, name)
	}
	live := s.broker.Queue(t, names[0])
	require.True(t, live.Exclusive)
	require.Equal(t, "classic", live.Type)
	require.EqualValues(t, 10_000, live.Arguments["x-max-length"])
	require.Equal(t, "drop-head", live.Arguments["x-overflow"])
}

// When only its channels are lost the same queue is consumed again: nothing is missed, no gap is reported, and no queue is
// left behind.
func TestLiveChannelLost(t *testing.T) {
	const n = 200
	s := newSetup(t)
	p := s.publisher()
	var in inbox
	s.listen(s.conn, s.live(), in.handle, pubsub.SubscriberConfig{OnGap: in.onGap, Concurrency: 2})
	before := s.queues(s.exchange.Name + ".live")
	require.Len(t, before, 1)
	for i := range 4 {
		// Closed while nothing is on its way: a delivery that the broker still sends to a closed channel makes the driver
		// close the whole connection.
		testenv.Eventually(t, patience, func() bool { q := s.broker.Queue(t, before[0]); return q.Ready+q.Unacked == 0 }, "all settled")
		require.Equal(t, 2, s.broker.CloseChannels(t, s.name+"/consuming"))
		publish(t, p, i*n/4, (i+1)*n/4)
		testenv.Eventually(t, patience, func() bool { return s.broker.Queue(t, before[0]).Consumers == 2 }, "consumed again")
	}
	in.reaches(t, n)
	require.Equal(t, before, s.queues(s.exchange.Name+".live"))
	require.Empty(t, in.reported())
}

// A queue that somebody deletes is replaced on the same connection, and that is a gap.
func TestLiveQueueDeleted(t *testing.T) {
	s := newSetup(t)
	p := s.publisher()
	var in inbox
	s.listen(s.conn, s.live(), in.handle, pubsub.SubscriberConfig{OnGap: in.onGap, Concurrency: 2})
	old := s.queues(s.exchange.Name + ".live")
	require.Len(t, old, 1)
	var deleted any
	s.broker.Eval(t, &deleted, `{ok, Q} = rabbit_amqqueue:lookup({resource, <<"/">>, queue, <<"`+old[0]+`">>}),
		rabbit_amqqueue:delete(Q, false, false, <<"test">>), true.`)
	testenv.Eventually(t, patience, func() bool { return len(in.reported()) == 1 }, "the gap reported")
	publish(t, p, 0, 1)
	in.reaches(t, 1)
	now := s.queues(s.exchange.Name + ".live")
	require.Len(t, now, 1)
	require.NotEqual(t, old, now)
	testenv.Eventually(t, patience, func() bool { return s.broker.Queue(t, now[0]).Consumers == 2 }, "both channels consume again")
	require.Len(t, in.reported(), 1)
}

// An exchange that somebody deletes takes the bindings with it. With the next channel it is back, and so are those of the
// group and of the live subscription.
func TestDeletedExchangeIsBoundAgain(t *testing.T) {
	s := newSetup(t)
	p := s.publisher()
	var durable, live inbox
	s.subscribe(s.conn, s.group("group"), durable.handle, pubsub.SubscriberConfig{})
	s.listen(s.conn, s.live(), live.handle, pubsub.SubscriberConfig{})
	require.Len(t, s.bindings(s.exchange.Name), 2)
	ch, err := s.broker.Dial(t).Channel()
	require.NoError(t, err)
	require.NoError(t, ch.ExchangeDelete(s.exchange.Name, false, false))
	require.Equal(t, 2, s.broker.CloseChannels(t, s.name+"/consuming"))
	testenv.Eventually(t, patience, func() bool { return len(s.bindings(s.exchange.Name)) == 2 }, "both bound again")
	publish(t, p, 0, 1)
	durable.reaches(t, 1)
	live.reaches(t, 1)
}

// A frozen link is noticed within three heartbeats, and then the subscription is back at once: it does not wait for its old
// name, which the broker goes on to hold.
func TestLiveFrozenLink(t *testing.T) {
	broker := testenv.Shared(t)
	proxy := testenv.Proxy(t, broker.URL())
	s := newSetupOn(t, broker, proxy.URL())
	var in inbox
	direct := newSetup(t) // to publish past the proxy
	direct.exchange = s.exchange
	p := direct.publisher()
	conn := s.dial(reconnect.Config{Name: testenv.Name(t, "frozen"), Heartbeat: time.Second, Lazy: true})
	s.listen(conn, s.live(), in.handle, pubsub.SubscriberConfig{OnGap: in.onGap})
	old := s.queues(s.exchange.Name + ".live")
	require.Len(t, old, 1)

	proxy.FreezeToClient() // the broker goes on to hear our heartbeats, and holds the queue
	frozen := time.Now()
	testenv.Eventually(t, patience, func() bool { return !consuming(conn) }, "the loss noticed")
	noticed := time.Since(frozen)
	require.Less(t, noticed, 3*3*time.Second, "promised within three heartbeats")
	proxy.Heal()
	healed := time.Now()
	testenv.Eventually(t, patience, func() bool { return len(in.reported()) == 1 && consuming(conn) }, "back")
	t.Logf("noticed after %v, back %v after the network", noticed, time.Since(healed))
	publish(t, p, 0, 1)
	in.reaches(t, 1)
	g := in.reported()[0]
	require.WithinDuration(t, frozen, g.from, 3*time.Second, "up to a second early, in a process that never pauses")
	require.WithinDuration(t, healed, g.to, 3*time.Second)
}

func consuming(conn *reconnect.Conn) bool {
	for _, s := range conn.State() {
		if s.Name == "consuming" {
			return s.Phase == "connected"
		}
	}
	return false
}

// A live subscription begins when it is ready; its queue ends with its Run, and the next Run counts the time between as
// a gap.
func TestLiveRunAgain(t *testing.T) {
	s := newSetup(t)
	p := s.publisher()
	publish(t, p, 0, 3) // nobody there, and no error
	var in inbox
	sub, err := pubsub.NewLiveSubscriber(s.conn, s.live(), in.handle, pubsub.SubscriberConfig{OnGap: in.onGap})
	require.NoError(t, err)
	stop := run(t, sub)
	require.ErrorContains(t, sub.Run(t.Context()), "running already")
	publish(t, p, 3, 5)
	in.reaches(t, 2)
	require.NoError(t, stop())
	require.Empty(t, s.queues(s.exchange.Name+".live"), "the queue outlived its Run")

	publish(t, p, 5, 8)
	stop = run(t, sub)
	publish(t, p, 8, 9)
	in.reaches(t, 3)
	require.Equal(t, []string{"3", "4", "8"}, in.all())
	require.Len(t, in.reported(), 1)
	require.Equal(t, 2, in.reported()[0].after)
	require.NoError(t, stop())
}

// What a live subscriber's handler fails on is dropped.
func TestLiveFailuresAreDropped(t *testing.T) {
	s := newSetup(t)
	p := s.publisher()
	var in inbox
	s.listen(s.conn, s.live(), func(ctx context.Context, d amqp.Delivery) error {
		_ = in.handle(ctx, d)
		switch d.MessageId {
		case "1":
			return errors.New("no")
		case "2":
			panic("no")
		}
		return nil
	}, pubsub.SubscriberConfig{})
	publish(t, p, 0, 5)
	in.reaches(t, 5)
	queue := s.queues(s.exchange.Name + ".live")[0]
	testenv.Eventually(t, patience, func() bool { q := s.broker.Queue(t, queue); return q.Ready+q.Unacked == 0 }, "all settled")
	require.Equal(t, ids(0, 5), in.all(), "each of them once")
}

// A full live queue drops its oldest messages, and the suspicion is reported.
func TestLiveOverflow(t *testing.T) {
	s := newSetup(t)
	p := s.publisher()
	var in inbox
	var suspicions atomic.Int64
	release := make(chan struct{})
	sub := s.live()
	sub.MaxLength = 50
	s.listen(s.conn, sub, func(ctx context.Context, d amqp.Delivery) error {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return in.handle(ctx, d)
	}, pubsub.SubscriberConfig{Prefetch: 1, OnOverflow: func() { suspicions.Add(1) }})
	publish(t, p, 0, 20)
	publish(t, p, 20, 200)
	testenv.Eventually(t, patience, func() bool { return suspicions.Load() > 0 }, "the suspicion reported")
	close(release)
	testenv.Eventually(t, patience, func() bool { got := in.all(); return len(got) > 0 && got[len(got)-1] == "199" }, "the last message")
	require.Less(t, len(in.all()), 200, "some were dropped")

	queue := s.queues(s.exchange.Name + ".live")[0]
	testenv.Eventually(t, patience, func() bool { return s.broker.Queue(t, queue).Ready == 0 }, "empty")
	n := suspicions.Load()
	publish(t, p, 200, 210)
	in.reaches(t, len(in.all()))
	testenv.Eventually(t, patience, func() bool { got := in.all(); return got[len(got)-1] == "209" }, "the last message")
	require.LessOrEqual(t, suspicions.Load(), n+1, "nothing is suspected of a queue that is not full")
}

// OnGap holds back the next message for as long as it takes, and its panic harms nothing.
func TestGapComesBeforeTheNextMessage(t *testing.T) {
	s := newSetup(t)
	p := s.publisher()
	var in inbox
	var gaps atomic.Int64
	began, release := make(chan struct{}, 8), make(chan struct{})
	s.listen(s.conn, s.live(), in.handle, pubsub.SubscriberConfig{Concurrency: 2, OnGap: func(time.Time, time.Time) {
		gaps.Add(1)
		began <- struct{}{}
		<-release
		panic("of OnGap")
	}})
	s.broker.CutConnections(t, s.name)
	<-began
	publish(t, p, 0, 5) // bound already
	require.Empty(t, in.all())
	close(release)
	in.reaches(t, 5)
	require.Equal(t, int64(1), gaps.Load())
}

// A paused live subscription stays bound, through a loss of its connection, too.
func TestLivePaused(t *testing.T) {
	s := newSetup(t)
	p := s.publisher()
	var in inbox
	sub, err := pubsub.NewLiveSubscriber(s.conn, s.live(), in.handle, pubsub.SubscriberConfig{OnGap: in.onGap})
	require.NoError(t, err)
	run(t, sub)
	sub.Pause()
	s.broker.CutConnections(t, s.name)
	testenv.Eventually(t, patience, func() bool { return len(in.reported()) == 1 }, "bound again while paused")
	publish(t, p, 0, 3)
	require.Empty(t, in.all())
	sub.Resume()
	in.reaches(t, 3)
}

// Whatever happens to its connection and channels, a live subscription misses only what a gap that it was told of accounts
// for, and the durable group beside it nothing.
func TestLiveMissesOnlyWhatItIsToldOf(t *testing.T) {
	const faults = 10
	s := newSetup(t)
	p := s.publisher()
	var durable, live inbox
	s.subscribe(s.conn, s.group("group"), durable.handle, pubsub.SubscriberConfig{Concurrency: 2})
	s.listen(s.conn, s.live(), live.handle, pubsub.SubscriberConfig{OnGap: live.onGap, Concurrency: 2})

	var begun, confirmed []time.Time
	var failed error
	ctx, cancel := context.WithCancel(t.Context())
	var publishing sync.WaitGroup
	publishing.Go(func() {
		for ctx.Err() == nil && failed == nil {
			begun = append(begun, time.Now())
			failed = p.Publish(t.Context(), message(len(confirmed)))
			confirmed = append(confirmed, time.Now())
		}
	})
	handles := func() { // again, and has caught up but for what is just under way
		t.Helper()
		n := len(live.all())
		testenv.Eventually(t, patience, func() bool {
			queues := s.queues(s.exchange.Name + ".live")
			if len(queues) != 1 || len(live.all()) < n+20 {
				return false
			}
			q := s.broker.Queue(t, queues[0])
			return q.Consumers == 2 && q.Ready < 10
		}, "handles what comes")
	}
	cuts := 0
	for range faults {
		handles()
		if told := len(live.reported()); rand.IntN(2) == 0 {
			if s.broker.CutConnections(t, s.name+"/consuming") > 0 { // else the last fault has cost the connection
				cuts++
				testenv.Eventually(t, patience, func() bool { return len(live.reported()) > told }, "told of the gap") // not yet of the next
			}
		} else {
			s.broker.CloseChannels(t, s.name+"/consuming") // which may cost the connection as well
		}
	}
	handles()
	cancel()
	publishing.Wait()
	require.NoError(t, failed)
	n := len(confirmed)
	durable.reaches(t, n)
	testenv.Eventually(t, patience, func() bool { got := live.all(); return slices.Contains(got, strconv.Itoa(n-1)) }, "the last one")

	got, gaps := map[string]bool{}, live.reported()
	for _, id := range live.all() {
		got[id] = true
	}
	for i := range n {
		told := slices.ContainsFunc(gaps, func(g gap) bool {
			return !confirmed[i].Before(g.from.Add(-waiting)) && !begun[i].After(g.to)
		})
		require.True(t, got[strconv.Itoa(i)] || told, "message %d is missed, and not told of", i)
	}
	t.Logf("%d of %d messages, %d cuts, %d gaps", len(got), n, cuts, len(gaps))
	require.LessOrEqual(t, len(gaps), faults)
	require.GreaterOrEqual(t, len(gaps), cuts)
	for i, g := range gaps {
		require.True(t, g.from.Before(g.to))
		require.False(t, i > 0 && g.from.Before(gaps[i-1].to), "gaps do not overlap")
	}
}
