package reconnect

import (
	"context"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// P4: a link that is frozen is noticed within three heartbeats in every phase, and calls end with their context.
func TestP4FrozenLinkIsNoticed(t *testing.T) {
	t.Parallel()
	const heartbeat = time.Second
	b := testenv.Shared(t)
	open := func(t *testing.T) (*Conn, *testenv.FaultProxy) {
		t.Helper()
		p := testenv.Proxy(t, b.URL())
		c, _ := dialed(t, p.URL(), Config{Heartbeat: heartbeat, DialTimeout: time.Second})
		return c, p
	}
	noticed := func(t *testing.T, s *session, began time.Time) {
		t.Helper()
		receive(t, s.lost(), 20*heartbeat, "the loss is noticed")
		took(t, began, 3*heartbeat, "noticing a frozen link")
	}
	t.Run("idle", func(t *testing.T) {
		t.Parallel()
		c, p := open(t)
		s, err := c.publishing.now()
		require.NoError(t, err)
		testenv.Eventually(t, 5*heartbeat, func() bool { return time.Since(s.born) > 3*heartbeat }, "time passes")
		require.True(t, s.alive(), "an idle link is not a frozen one")
		p.Freeze()
		noticed(t, s, time.Now())
		p.Heal()
		restored(t, c)
	})
	t.Run("right after the handshake", func(t *testing.T) {
		t.Parallel()
		p := testenv.Proxy(t, b.URL())
		cfg, _ := testConfig(t, Config{Heartbeat: heartbeat})
		d, err := newDialer(p.URL(), cfg.withDefaults())
		require.NoError(t, err)
		o, err := d.dial(t.Context(), address{network: hostOf(t, p.URL())}, "test")
		require.NoError(t, err)
		p.Freeze()
		began := time.Now()
		running := newGate()
		s := newSession(o, running, func(*session) {})
		noticed(t, s, began)
		require.Zero(t, running.shut(within(t, 5*time.Second)))
	})
	t.Run("while publishing by hand", func(t *testing.T) {
		t.Parallel()
		c, p := open(t)
		causes := make(chan error, 1)
		frozen := make(chan time.Time, 1)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- c.SupervisePublishing(ctx, "w", Topology{}, func(ctx context.Context, ch *amqp.Channel) error {
				for i := 0; ctx.Err() == nil; i++ {
					if i == 1000 {
						p.Freeze()
						frozen <- time.Now()
					}
					// Nothing bounds what the driver gathers; a slow writer is enough to see that it does not hang.
					if i > 1000 {
						pause := time.NewTimer(10 * time.Millisecond)
						<-pause.C
					}
					if err := ch.Publish("", "nowhere", false, false, amqp.Publishing{Body: make([]byte, 1000)}); err != nil {
						break
					}
				}
				<-ctx.Done()
				causes <- context.Cause(ctx)
				cancel()
				return nil
			})
		}()
		began := receive(t, frozen, 10*time.Second, "frozen")
		require.ErrorIs(t, receive(t, causes, 20*heartbeat, "the context ends"), errChannelLost)
		took(t, began, 3*heartbeat, "noticing a frozen link")
		require.NoError(t, receive(t, ended, 5*time.Second, "Supervise returns"))
	})
	t.Run("during a declaration", func(t *testing.T) {
		t.Parallel()
		c, p := open(t)
		s, err := c.publishing.now()
		require.NoError(t, err)
		p.Freeze()
		began := time.Now()
		err = c.Declare(within(t, 300*time.Millisecond), queueOf(testenv.Name(t, "q")))
		took(t, began, 300*time.Millisecond, "a declaration with a context")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		err = c.Ping(within(t, 300*time.Millisecond))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "publishing link")
		_, err = c.Inspect(within(t, 300*time.Millisecond), "q")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		noticed(t, s, began)
	})
	t.Run("by one that is consuming", func(t *testing.T) {
		t.Parallel()
		c, p := open(t)
		w := newConsumer(testenv.Name(t, "q"))
		supervise(t, c, "w", queueOf(w.queue), w.run)
		receive(t, w.consuming, 10*time.Second, "consuming")
		s, err := c.consuming.now()
		require.NoError(t, err)
		p.FreezeToClient() // the broker still hears our heartbeats
		noticed(t, s, time.Now())
		p.Heal()
		receive(t, w.consuming, 10*time.Second, "consuming again")
	})
	t.Run("during a dial", func(t *testing.T) {
		t.Parallel()
		c, p := open(t)
		p.Freeze()
		p.Cut()
		began := time.Now()
		testenv.Eventually(t, 10*time.Second, func() bool {
			for _, s := range c.State() {
				if s.Attempts > 1 && strings.Contains(s.Reason, "handshake: context deadline exceeded") {
					return true
				}
			}
			return false
		}, "the attempt is given up")
		took(t, began, time.Second, "an attempt that is bounded by DialTimeout")
		p.Heal()
		restored(t, c)
	})
}
