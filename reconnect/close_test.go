package reconnect

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/internal/testenv/peer"
)

func TestCloseIsIdempotentAndFinal(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	c, _ := dialed(t, b.URL(), Config{})
	w := newConsumer(testenv.Name(t, "q"))
	ended := make(chan error, 1)
	go func() { ended <- c.Supervise(t.Context(), "w", queueOf(w.queue), w.run) }()
	receive(t, w.consuming, 10*time.Second, "consuming")
	began := time.Now()
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if err := c.Close(within(t, 10*time.Second)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	took(t, began, time.Second, "closing")
	require.ErrorIs(t, receive(t, ended, 5*time.Second, "Supervise ended before Close returned"), ErrClosed)
	require.NoError(t, c.Close(t.Context()))
	ctx := within(t, 5*time.Second)
	nothing := func(context.Context, *amqp.Channel) error { return nil }
	for name, call := range map[string]func() error{
		"Declare":             func() error { return c.Declare(ctx, queueOf("q")) },
		"Channel":             func() error { _, err := c.Channel(ctx); return err },
		"Inspect":             func() error { _, err := c.Inspect(ctx, "q"); return err },
		"Ping":                func() error { return c.Ping(ctx) },
		"Supervise":           func() error { return c.Supervise(ctx, "w", Topology{}, nothing) },
		"SupervisePublishing": func() error { return c.SupervisePublishing(ctx, "w", Topology{}, nothing) },
	} {
		require.ErrorIs(t, call(), ErrClosed, name)
	}
	require.ElementsMatch(t, []string{"publishing closed", "consuming closed"}, phases(c.State()))
	testenv.Eventually(t, 5*time.Second, func() bool { return len(b.Connections(t, c.Config().Name)) == 0 }, "no connection is left")
}

// A8, P13: during an outage and during a dial Close returns at once, and nothing is dialed afterwards.
func TestA8P13CloseDuringAnOutage(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(*testenv.FaultProxy){
		"backing off":  (*testenv.FaultProxy).Refuse,
		"while dialed": (*testenv.FaultProxy).Freeze, // accepted, and never answered
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := testenv.Proxy(t, testenv.Shared(t).URL())
			var dials atomic.Int32
			c, _ := dialed(t, p.URL(), Config{BackoffMin: time.Minute, BackoffMax: time.Minute,
				DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
					dials.Add(1)
					return new(net.Dialer).DialContext(ctx, network, address)
				}})
			fault(p)
			p.Cut()
			waiting := make(chan error, 2)
			go func() { waiting <- c.Declare(context.Background(), queueOf("q")) }()
			go func() {
				waiting <- c.Supervise(context.Background(), "w", Topology{}, func(context.Context, *amqp.Channel) error { return nil })
			}()
			testenv.Eventually(t, 10*time.Second, func() bool {
				return phase(c, "publishing") == phaseConnecting && phase(c, "consuming") == phaseConnecting && phase(c, "w") == phaseStarting
			}, "all wait")
			began := time.Now()
			require.NoError(t, c.Close(context.Background()))
			took(t, began, 100*time.Millisecond, "Close")
			before := dials.Load()
			for range 2 {
				require.ErrorIs(t, receive(t, waiting, 5*time.Second, "what waited has ended"), ErrClosed)
			}
			p.Heal()
			began = time.Now()
			testenv.Eventually(t, 10*time.Second, func() bool {
				require.Equal(t, before, dials.Load(), "dialed after Close")
				return time.Since(began) > 2*time.Second && p.Connections() == 0 // the broker may take a while to notice the end of one
			}, "time passes, and nothing is connected")
		})
	}
}

// A link that is frozen gets no polite close for longer than Close has.
func TestCloseFrozen(t *testing.T) {
	t.Parallel()
	p := testenv.Proxy(t, testenv.Shared(t).URL())
	c, _ := dialed(t, p.URL(), Config{})
	_, err := c.Channel(within(t, 5*time.Second))
	require.NoError(t, err)
	p.Freeze()
	began := time.Now()
	require.Error(t, c.Close(within(t, 500*time.Millisecond)))
	took(t, began, 500*time.Millisecond, "Close of a frozen link")
}

func TestCloseCutsOffWhatHangs(t *testing.T) {
	t.Parallel()
	c, _ := dialed(t, testenv.Shared(t).URL(), Config{})
	running, release, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- c.Supervise(context.Background(), "w", Topology{}, func(context.Context, *amqp.Channel) error {
			close(running)
			<-release
			return nil
		})
	}()
	receive(t, running, 10*time.Second, "running")
	began := time.Now()
	err := c.Close(within(t, 300*time.Millisecond))
	took(t, began, 300*time.Millisecond+time.Second, "Close with a function that ignores its context")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "1 supervised functions and 0 calls were cut off")
	close(release)
	require.ErrorIs(t, receive(t, ended, 5*time.Second, "Supervise returns when it can"), ErrClosed)
}

func TestCloseWithAnEndedContext(t *testing.T) {
	t.Parallel()
	c, _ := dialed(t, testenv.Shared(t).URL(), Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	began := time.Now()
	require.NoError(t, c.Close(ctx), "nothing had to be cut off")
	took(t, began, 100*time.Millisecond, "Close with an ended context")
}

// Who calls Close gets the outcome of the first call, with what was cut off, also when a busy machine lets that come to its end
// a second late.
func TestCloseWaitsForTheOutcome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &Conn{closed: make(chan struct{})}
		c.closing.Do(func() {}) // by another caller, with a context that has ended, too
		outcome := errors.New("one call was cut off")
		time.AfterFunc(lastMoment+time.Second, func() {
			c.closeErr = outcome
			close(c.closed)
		})
		require.Same(t, outcome, c.Close(canceled()))

		c.closed = make(chan struct{})
		began := time.Now()
		require.ErrorIs(t, c.Close(canceled()), context.Canceled, "the first caller's context lives on")
		require.Equal(t, grace, time.Since(began))
	})
}

// Functions of the user's that ignore their context can neither hold up Close nor bring back what it has closed.
func TestCloseDespiteAStuckDial(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	release := make(chan struct{})
	var asked atomic.Int32
	u, err := amqp.ParseURI(b.URL())
	require.NoError(t, err)
	c, _ := dialed(t, b.URL(), Config{Credentials: func(context.Context) (amqp.Authentication, time.Time, error) {
		if asked.Add(1) > 1 {
			<-release
		}
		return &amqp.PlainAuth{Username: u.Username, Password: u.Password}, time.Time{}, nil
	}})
	cutAll(t, b, c)
	testenv.Eventually(t, 5*time.Second, func() bool { return asked.Load() == 2 }, "dialing")
	began := time.Now()
	err = c.Close(within(t, 300*time.Millisecond))
	took(t, began, 300*time.Millisecond+time.Second, "Close")
	require.ErrorContains(t, err, "publishing link: a dial in progress ignores its context")
	close(release)
	testenv.Eventually(t, 5*time.Second, func() bool { return len(b.Connections(t, c.Config().Name)) == 0 }, "no connection is left")
	<-c.publishing.stopped
}

// Close while everything is busy, again and again: it neither hangs nor leaves anything behind.
func TestCloseAtAnyMoment(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	name := testenv.Name(t, "conn")
	for i := range 30 {
		cfg, _ := testConfig(t, Config{Name: name})
		c, err := Dial(within(t, 20*time.Second), b.URL(), cfg)
		require.NoError(t, err)
		var wg sync.WaitGroup
		for range 4 {
			q := testenv.Name(t, "q")
			wg.Go(func() {
				_ = c.Supervise(context.Background(), "w", Topology{Queues: []Queue{{Name: q, Exclusive: true}}}, newConsumer(q).run)
			})
			wg.Go(func() {
				_ = c.Declare(context.Background(), Topology{Queues: []Queue{{Name: q + "d", Exclusive: true}}})
			})
			wg.Go(func() { _, _ = c.Channel(context.Background()) })
		}
		pause := time.NewTimer(time.Duration(i) * time.Millisecond)
		<-pause.C
		began := time.Now()
		require.NoError(t, c.Close(context.Background()))
		require.Less(t, time.Since(began), 3*time.Second)
		wg.Wait()
	}
	testenv.Eventually(t, 5*time.Second, func() bool { return len(b.Connections(t, name)) == 0 }, "no connection is left")
}

// What a closing Conn's functions do at the end is still done: here a declaration.
func TestCloseLetsWorkersDrain(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	c, _ := dialed(t, b.URL(), Config{})
	q := testenv.Name(t, "q")
	running, ended := make(chan struct{}), make(chan error, 1)
	var declared error
	go func() {
		ended <- c.Supervise(context.Background(), "w", Topology{}, func(ctx context.Context, ch *amqp.Channel) error {
			close(running)
			<-ctx.Done()
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			declared = c.Declare(ctx, queueOf(q))
			return nil
		})
	}()
	receive(t, running, 10*time.Second, "running")
	require.NoError(t, c.Close(within(t, 10*time.Second)))
	require.ErrorIs(t, receive(t, ended, 5*time.Second, "ended"), ErrClosed)
	require.NoError(t, declared)
	require.True(t, b.Queue(t, q).Exists)
}

// A peer that never says anything after the TCP handshake, a Close in the middle of it.
func TestCloseDuringTheFirstDial(t *testing.T) {
	t.Parallel()
	silent := listener(t, func(nc net.Conn) { _, _ = io.Copy(io.Discard, nc) })
	cfg, _ := testConfig(t, Config{Lazy: true})
	c, err := Dial(t.Context(), "amqp://"+silent+"/", cfg)
	require.NoError(t, err)
	waiting := make(chan error, 1)
	go func() { _, err := c.Channel(context.Background()); waiting <- err }()
	testenv.Eventually(t, 5*time.Second, func() bool { return phase(c, "consuming") == phaseConnecting }, "dialing")
	began := time.Now()
	require.NoError(t, c.Close(context.Background()))
	took(t, began, 100*time.Millisecond, "Close during a dial")
	require.ErrorIs(t, receive(t, waiting, 5*time.Second, "the waiting call"), ErrClosed)
}

// A broker, or a network, that hangs up just as we close has closed: that is no failure of Close.
func TestCloseWhileThePeerHangsUp(t *testing.T) {
	conn, _ := dialed(t, "amqp://guest:guest@127.0.0.1:1", Config{Heartbeat: time.Hour,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			client, _ := peer.Pipe(func(_ *peer.Peer, f peer.Frame) bool { return f.Method() != [2]uint16{10, 50} })
			return client, nil
		}})
	require.NoError(t, conn.Ping(within(t, 10*time.Second)))
	require.NoError(t, conn.Close(within(t, 10*time.Second)))
}
