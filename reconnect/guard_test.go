package reconnect

import (
	"io"
	"net"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/coalesce"

	"github.com/warrenmq/warren/internal/testenv"
)

// An impatient publisher finds nothing stalled sooner than minStallAfter.
func TestStallAfter(t *testing.T) {
	for timeout, want := range map[time.Duration]time.Duration{
		-1: 3 * time.Second, 1: time.Second, time.Millisecond: time.Second, 3 * time.Second: time.Second,
		6 * time.Second: 2 * time.Second, 9 * time.Second: 3 * time.Second, time.Minute: 3 * time.Second,
	} {
		p := Publisher{cfg: PublisherConfig{ConfirmTimeout: timeout}}
		require.Equal(t, want, p.stallAfter(), timeout)
	}
}

// guarded is a channel on a connection whose peer takes what the test lets it.
type guarded struct {
	*confirms
	t    *testing.T
	sock *coalesce.Conn
	peer net.Conn
	tag  uint64
}

func newGuarded(t *testing.T) *guarded {
	near, far := net.Pipe()
	sock := coalesce.New(near)
	t.Cleanup(sock.Kill)
	return &guarded{t: t, sock: sock, peer: far, confirms: &confirms{session: &session{sock: sock}, flights: map[string]*flight{}}}
}

// send puts a message of so many bytes in flight.
func (g *guarded) send(key string, bytes int) *flight {
	g.tag++
	f := g.enter(&Message{Key: key, Publishing: amqp.Publishing{MessageId: key}})
	_, _ = g.sock.Write(make([]byte, bytes))
	f.confirm, f.end = &amqp.DeferredConfirmation{DeliveryTag: g.tag}, g.sock.Written()
	return f
}

// take lets the peer take so many bytes.
func (g *guarded) take(bytes int64) {
	g.t.Helper()
	sent := g.sock.Sent() + bytes
	_, err := io.CopyN(io.Discard, g.peer, bytes)
	require.NoError(g.t, err)
	require.Eventually(g.t, func() bool { return g.sock.Sent() >= sent }, 5*time.Second, time.Millisecond)
}

// confirmed has f confirmed.
func (g *guarded) confirmed(f *flight) {
	g.session.noteRead(f.end)
	g.remove(f)
	g.acked = max(g.acked, f.confirm.DeliveryTag)
}

// requireNone looks so often, a second each, and finds nothing stalled.
func (g *guarded) requireNone(looks int) {
	g.t.Helper()
	for range looks {
		found, _ := g.stalled(time.Second)
		require.Empty(g.t, found)
	}
}

func (g *guarded) requireStalled(keys ...string) {
	g.t.Helper()
	found, _ := g.stalled(time.Second)
	var got []string
	for _, r := range found {
		got = append(got, r.key)
	}
	require.ElementsMatch(g.t, keys, got)
}

// What is still in our buffer, or may be on its way, is not overdue; what the broker has read and does not confirm is.
func TestOverdue(t *testing.T) {
	t.Run("alone", func(t *testing.T) {
		g := newGuarded(t)
		g.send("a", 1000)
		g.take(1000)
		g.requireNone(guardTicks)
		g.requireStalled("a")
	})
	t.Run("with a later one confirmed", func(t *testing.T) {
		g := newGuarded(t)
		g.send("a", 1000)
		b := g.send("b", 1000)
		g.send("c", 1000)
		g.take(3000)
		g.confirmed(b)
		g.requireNone(guardTicks)
		g.requireStalled("a", "a") // as the first, too
	})
	t.Run("in our buffer", func(t *testing.T) {
		g := newGuarded(t)
		const chunk = 64 << 10 // of coalesce
		g.send("a", 10*chunk)
		for range 10 {
			g.requireNone(1)
			g.take(chunk)
		}
		g.requireNone(guardTicks)
	})
	t.Run("on its way", func(t *testing.T) {
		g := newGuarded(t)
		g.send("a", 10*slowestLink)
		g.take(10 * slowestLink)
		g.requireNone(10 + guardTicks)
		g.requireStalled("a")
	})
	t.Run("behind what is on its way", func(t *testing.T) {
		g := newGuarded(t)
		a := g.send("a", 10*slowestLink)
		b := g.send("b", 100)
		g.take(10*slowestLink + 100)
		g.requireNone(10)
		g.confirmed(a)
		g.requireNone(guardTicks)
		g.confirmed(b)
		g.requireNone(2 * guardTicks)
	})
	t.Run("read just now, before one that is confirmed", func(t *testing.T) {
		g := newGuarded(t)
		g.send("a", 10*slowestLink)
		b := g.send("b", 100)
		g.take(10*slowestLink + 100)
		g.requireNone(10)
		g.confirmed(b) // before a, whose queue is a slower one
		g.requireNone(guardTicks)
		g.requireStalled("a", "a")
	})
}

// Whether the broker reads is asked after a tick without a sign of it, of what has left our buffer.
func TestUnreadIsSuspected(t *testing.T) {
	g := newGuarded(t)
	suspected := func() bool {
		_, unread := g.stalled(time.Second)
		return unread
	}
	a := g.send("a", 1000)
	require.False(t, suspected())
	require.False(t, suspected(), "it is in our buffer")
	g.take(1000)
	require.True(t, suspected())
	b := g.send("b", 1000)
	g.take(1000)
	g.confirmed(a)
	require.False(t, suspected())
	require.True(t, suspected())
	g.session.noteRead(b.end)
	require.False(t, suspected())
	require.False(t, suspected(), "it was read, whatever becomes of it")
}

// When nothing moves: what leaves our buffer at once, and heartbeats, are no sign.
func TestQuiet(t *testing.T) {
	var q quiet
	now := time.Now()
	step := func(tr traffic) time.Duration {
		now = now.Add(time.Second)
		return q.look(now, tr)
	}
	require.Zero(t, step(traffic{sent: 100, heard: 1, read: 50}), "the first look")
	require.Equal(t, time.Second, step(traffic{sent: 100, heard: 1, read: 50}))
	require.Equal(t, 2*time.Second, step(traffic{sent: 200, heard: 1, read: 50}), "taken in by the system")
	require.Equal(t, 3*time.Second, step(traffic{sent: 200, heard: 1, read: 50, unsent: 100}))
	require.Equal(t, 4*time.Second, step(traffic{sent: 200, heard: 1, read: 50, unsent: 200}))
	require.Zero(t, step(traffic{sent: 201, heard: 1, read: 50, unsent: 199}), "the buffer drains")
	require.Equal(t, time.Second, step(traffic{sent: 201, heard: 1, read: 50, unsent: 199}))
	require.Zero(t, step(traffic{sent: 201, heard: 2, read: 50, unsent: 199}), "it says something")
	require.Equal(t, time.Second, step(traffic{sent: 201, heard: 2, read: 50, unsent: 199}))
	require.Zero(t, step(traffic{sent: 201, heard: 2, read: 51, unsent: 199}), "it has read something")
}

func TestTransit(t *testing.T) {
	require.Zero(t, transit(-1))
	require.Zero(t, transit(0))
	require.Equal(t, time.Second, transit(slowestLink))
	require.Equal(t, 90*time.Second, transit(90*slowestLink))
	require.Equal(t, maxTransit, transit(1<<62))
}

// Each connection that is given up makes the next one be given twice the time, until nothing is stalled any more.
func TestPatience(t *testing.T) {
	s := stalls{log: testenv.Logger(io.Discard)}
	s.note([]route{{"", "a"}, {"", "b"}})
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 32, 32} {
		require.Equal(t, want*readAfter, s.patience())
		s.gaveUp()
	}
	s.confirmed("", "a")
	require.Equal(t, maxPatience, s.patience())
	s.confirmed("", "b")
	require.Equal(t, readAfter, s.patience())
}

// What the broker is known to have read never becomes less.
func TestNoteRead(t *testing.T) {
	var s session
	concurrently(8, func(i int) {
		for n := range int64(1000) {
			s.noteRead(n * int64(i))
		}
	})
	require.Equal(t, int64(999*7), s.read.Load())
}
