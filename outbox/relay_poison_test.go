package outbox

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
)

// P58, target 8: ten messages that cannot be sent among a thousand that can: one kind closes the channel because its
// exchange is missing, one because nobody may publish to it, one comes back. The good ones are out at once, and in order.
func TestP58PoisonAmongGoodOnes(t *testing.T) {
	t.Parallel()
	box, in := newBox(t, Config{}), newInbox(t)
	conn, _ := dialed(t, testenv.Shared(t))
	internal := testenv.Name(t, "internal")
	require.NoError(t, conn.Declare(t.Context(), reconnect.Topology{Exchanges: []reconnect.Exchange{{Name: internal, Kind: "fanout", Internal: true}}}))
	var msgs []Message
	for i := range 1000 {
		if i%100 == 50 {
			poison := Message{Key: in.queue, Publishing: amqp.Publishing{Type: "poison"}}
			switch i / 100 % 3 {
			case 0:
				poison.Exchange = testenv.Name(t, "missing")
			case 1:
				poison.Exchange = internal // 403, which closes the channel that all are sent on
			case 2:
				poison.Key = testenv.Name(t, "nobody")
			}
			msgs = append(msgs, poison)
		}
		msgs = append(msgs, Message{Key: in.queue, Publishing: amqp.Publishing{Type: strconv.Itoa(i)}})
	}
	pub := &finding{Publisher: publisher(t, conn), found: map[string]time.Time{}}
	relay(t, box, pub, RelayConfig{MaxAttempts: 1})
	slowest := pulse(t)
	start := time.Now()
	storeAll(t, box, msgs...)
	in.complete(t, 1000)
	took, after := time.Since(start), time.Since(pub.last(10))
	machine := slowest()
	require.Equal(t, numbered("", 1000), in.firsts())
	testenv.Eventually(t, 3*patience, func() bool { return stats(t, box).Parked == 10 }, "all ten are parked")
	drained(t, box)
	reasons := map[string]int{}
	for p, err := range box.Parked(t.Context()) {
		require.NoError(t, err)
		for _, code := range []string{"(404)", "(403)", "312 NO_ROUTE"} {
			if strings.Contains(p.Reason, code) {
				reasons[code]++
			}
		}
	}
	require.Equal(t, map[string]int{"(404)": 4, "(403)": 3, "312 NO_ROUTE": 3}, reasons)
	t.Logf("1,000 good ones were there after %v, which is %v after the last poison was found, %d of them more than once; meanwhile one message alone took %v at most",
		took.Round(time.Millisecond), after.Round(time.Millisecond), in.repeated(), machine.Round(time.Millisecond))
	require.LessOrEqual(t, in.repeated(), 1000*3, "one more for each that closes the channel")
	require.Less(t, after, 6*time.Second+3*machine, "target: 2 s after the last poison is found")
}

// pulse sends messages through an outbox and a relay of its own, one after the other, until slowest is called, which returns
// how long the slowest took: a wait that the machine, the database or the broker owes to others at the time is in it, too.
func pulse(t testing.TB) (slowest func() time.Duration) {
	box, in := newBox(t, Config{}), newInbox(t)
	conn, _ := dialed(t, testenv.Shared(t))
	relay(t, box, publisher(t, conn), RelayConfig{})
	var most time.Duration
	stop, ended := make(chan struct{}), make(chan struct{})
	beat := func(n int) {
		start := time.Now()
		storeNumbered(t, box, in.queue, n, 1)
		for in.count() <= n && time.Since(start) < 3*patience {
			time.Sleep(5 * time.Millisecond)
		}
		most = max(most, time.Since(start))
	}
	beat(0) // its relay leads
	most = 0
	go func() {
		defer close(ended)
		for n := 1; ; n++ {
			select {
			case <-stop:
				return
			default:
				beat(n)
			}
		}
	}()
	end := sync.OnceFunc(func() { close(stop); <-ended })
	t.Cleanup(end)
	return func() time.Duration { end(); return most }
}

// finding notes when it was first known of a message that it cannot be sent.
type finding struct {
	Publisher
	mu    sync.Mutex
	found map[string]time.Time
}

func (f *finding) PublishBatch(ctx context.Context, msgs []reconnect.Message) error {
	err := f.Publisher.PublishBatch(ctx, msgs)
	verdicts, _ := judge(len(msgs), err)
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, m := range msgs {
		if _, known := f.found[m.MessageId]; !known && (verdicts[i] == failed || verdicts[i] == hopeless) {
			f.found[m.MessageId] = time.Now()
		}
	}
	return err
}

// last returns when the last of n was found; now, when not all are.
func (f *finding) last(n int) (last time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.found) < n {
		return time.Now()
	}
	for _, at := range f.found {
		if at.After(last) {
			last = at
		}
	}
	return last
}

// P58: rows of which the broker can make nothing, written by others, or too large for it: they are parked at once, and the
// reason says why. The others leave.
func TestP58WhatNobodyCanSend(t *testing.T) {
	t.Parallel()
	node := testenv.Node(t)
	node.MaxMessageSize(100_000)
	box, in := newBox(t, Config{}), newInboxAt(t, node.Broker)
	conn, _ := dialed(t, node.Broker)
	bad := map[string]string{ // what is written in SQL, and what the reason says of it
		`'[1]', NULL, ''`:                        "properties",
		`'{"priority": 300}', NULL, ''`:          "properties",
		`'{"delivery_mode": 9}', NULL, ''`:       "DeliveryMode",
		`'{"expiration": "soon"}', NULL, ''`:     "Expiration",
		`'{"type": 7}', NULL, ''`:                "properties",
		`NULL, '[]', ''`:                         "headers: ",
		`NULL, '{"a": 1e400}', ''`:               `headers["a"]`,
		`NULL, '{"a": {"$int": "x"}}', ''`:       `headers["a"]`,
		`NULL, '{"CC": "q"}', ''`:                `Headers["CC"]`,
		`NULL, NULL, repeat('x', 200000)::bytea`: "(406)",
	}
	stored := 0
	for values := range bad {
		exec(t, box.pool, "INSERT INTO outbox (message_id, exchange, routing_key, ordering_key, properties, headers, payload) VALUES"+
			" (gen_random_uuid(), '', $1, $2, "+values+")", in.queue, values)
		storeNumbered(t, box, in.queue, stored, 10)
		stored += 10
	}
	relay(t, box, publisher(t, conn), RelayConfig{})
	in.complete(t, stored)
	drained(t, box)
	for _, p := range parkedOf(t, box) {
		require.Contains(t, p.Reason, bad[p.OrderingKey])
		delete(bad, p.OrderingKey)
	}
	require.Empty(t, bad, "not parked")
	testenv.Eventually(t, patience, func() bool { return len(retries(t, box)) == 0 }, "their failures are forgotten")
}

// A publisher that panics costs the message that it panics at an attempt, and nothing else.
func TestPublisherThatPanics(t *testing.T) {
	t.Parallel()
	box, pub := newBox(t, Config{}), new(fake)
	pub.set(each(func(m reconnect.Message) error {
		if m.Key == "bad" {
			panic("of a publisher")
		}
		return nil
	}))
	store(t, box, "a", "bad", "b")
	relay(t, box, pub, RelayConfig{MaxAttempts: 2, BackoffMin: time.Millisecond})
	testenv.Eventually(t, patience, func() bool { s := stats(t, box); return s.Parked == 1 && s.Waiting == 0 }, "it is parked")
	require.Equal(t, []string{"a", "b"}, pub.sent())
	require.Contains(t, parkedOf(t, box)[0].Reason, "of a publisher")
}

// Many rows that fail again and again, and soon, do not keep back those behind them, whichever way rows are looked for.
func TestP58ManyFailingRowsKeepNobodyBack(t *testing.T) {
	t.Parallel()
	for _, byState := range []bool{false, true} {
		t.Run(fmt.Sprintf("by state %v", byState), func(t *testing.T) {
			t.Parallel()
			url := testenv.Postgres(t)
			box, pub := boxIn(t, newPool(t, url, nil), Config{}), new(fake)
			var failed atomic.Int64
			pub.set(each(func(m reconnect.Message) error {
				if strings.HasPrefix(m.Key, "bad") {
					failed.Add(1)
					return errors.New("no")
				}
				return nil
			}))
			if byState { // for as long as it may still commit
				testenv.HoldTransaction(t, url, "SELECT pg_current_xact_id()")
			}
			store(t, box, numbered("bad.", 40)...)
			relay(t, box, pub, RelayConfig{Batch: 5, MaxAttempts: -1, BackoffMin: time.Microsecond, BackoffMax: time.Microsecond})
			if !byState {
				byCursor(t, box)
			}
			// With the commit and the fetches for each three of them, that takes a machine that is busy some time.
			testenv.Eventually(t, 3*patience, func() bool { return failed.Load() > 200 }, "they fail")
			start := time.Now()
			store(t, box, numbered("good.", 20)...)
			testenv.Eventually(t, patience, func() bool { return len(pub.sent()) == 20 }, "the good ones leave")
			t.Logf("the good ones have left after %v", time.Since(start).Round(time.Millisecond))
			before := failed.Load()
			testenv.Eventually(t, 3*patience, func() bool { return failed.Load() > before+200 }, "the others are still tried")
		})
	}
}

// Failures that were noted of rows that are gone, deleted by hand, are forgotten; they would be counted, and looked for, for
// ever.
func TestFailuresOfGoneRowsAreForgotten(t *testing.T) {
	t.Parallel()
	box, pub := newBox(t, Config{}), new(fake)
	exec(t, box.pool, "INSERT INTO outbox_retry SELECT 0, n, 1, now(), 'no' FROM generate_series(1000, 1020) n")
	relay(t, box, pub, RelayConfig{Batch: 10, PollInterval: 100 * time.Millisecond})
	store(t, box, "a")
	testenv.Eventually(t, 3*patience, func() bool { return stats(t, box).Retrying == 0 }, "they are forgotten")
	require.Equal(t, []string{"a"}, pub.sent())
}
