package reconnect

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// P14: fifty losses leave no goroutine, channel or connection behind. Not parallel: it counts the goroutines of all.
func TestP14FiftyCutsLeakNothing(t *testing.T) {
	b := testenv.Shared(t)
	c, _ := dialed(t, b.URL(), Config{BackoffMin: time.Millisecond, BackoffMax: 5 * time.Millisecond})
	workers := []*consumer{newConsumer(testenv.Name(t, "q")), newConsumer(testenv.Name(t, "q"))}
	for _, w := range workers {
		supervise(t, c, "worker "+w.queue, queueOf(w.queue), w.run)
	}
	consuming := func() {
		for _, w := range workers {
			receive(t, w.consuming, 10*time.Second, "consuming")
		}
	}
	consuming()
	pub := raw(t, b)
	before := runtime.NumGoroutine()
	began := time.Now()
	for range 50 {
		for _, w := range workers {
			publish(t, pub, w.queue, "m")
		}
		cutAll(t, b, c)
		consuming()
	}
	t.Logf("50 losses and recoveries took %v", time.Since(began))
	restored(t, c)
	testenv.Eventually(t, 5*time.Second, func() bool {
		return len(b.Connections(t, c.Config().Name)) == 2 && len(b.Channels(t, c.Config().Name)) == 2
	}, "no connection and no channel is left over")
	for _, w := range workers {
		testenv.Eventually(t, 5*time.Second, func() bool { return b.Queue(t, w.queue).Consumers == 1 }, "one consumer")
		testenv.Eventually(t, 5*time.Second, func() bool { info := b.Queue(t, w.queue); return info.Ready+info.Unacked == 0 }, "all is consumed")
		require.GreaterOrEqual(t, len(w.got), 50)
	}
	testenv.Eventually(t, 10*time.Second, func() bool { return runtime.NumGoroutine() <= before+2 },
		"%d goroutines before, %d after", before, runtime.NumGoroutine())
}

// A9, P16: the password is changed; the connection lives on, the next dial is refused until the provider knows it, too.
func TestA9P16PasswordChanged(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	user := testenv.Name(t, "user")
	url := b.AddUser(t, user, secret+"1")
	b.SetPermissions(t, user, ".*", ".*", ".*")
	var mu sync.Mutex
	password := secret + "1"
	change := func(p string) { mu.Lock(); defer mu.Unlock(); password = p }
	c, log := dialed(t, url, Config{BackoffMax: 200 * time.Millisecond, Credentials: func(context.Context) (amqp.Authentication, time.Time, error) {
		mu.Lock()
		defer mu.Unlock()
		return &amqp.PlainAuth{Username: user, Password: password}, time.Time{}, nil
	}})
	b.ChangePassword(t, user, secret+"2")
	require.NoError(t, c.Ping(within(t, 5*time.Second)), "the living connection stays")
	require.Equal(t, 1, b.CutConnections(t, c.Config().Name))
	testenv.Eventually(t, 20*time.Second, func() bool { return strings.Contains(c.State()[0].Reason, "403") }, "the state says what it is")
	change(secret + "2")
	began := time.Now()
	testenv.Eventually(t, 20*time.Second, func() bool { return c.Ping(t.Context()) == nil }, "connected with the new one")
	took(t, began, 3500*time.Millisecond, "recovering through the provider")

	b.DeleteUser(t, user)
	testenv.Eventually(t, 20*time.Second, func() bool { return strings.Contains(c.State()[0].Reason, "403") }, "deleted")
	b.AddUser(t, user, secret+"2")
	b.SetPermissions(t, user, ".*", ".*", ".*")
	testenv.Eventually(t, 20*time.Second, func() bool { return c.Ping(t.Context()) == nil }, "connected again")
	require.NotContains(t, log.String(), secret)
}

// A hook may be slow, and may look at the Conn; everybody else goes on.
func TestSlowHookStallsNothing(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	release := make(chan struct{})
	var mu sync.Mutex
	var told []State
	cfg, _ := testConfig(t, Config{OnState: func(s State) {
		<-release
		mu.Lock()
		defer mu.Unlock()
		told = append(told, s)
	}})
	c, err := Dial(within(t, 10*time.Second), b.URL(), cfg)
	require.NoError(t, err)
	for range 3 {
		cutAll(t, b, c)
		restored(t, c)
	}
	close(release)
	require.NoError(t, c.Close(within(t, 5*time.Second)))
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, "publishing closed", phases(told)[len(told)-1])
	require.LessOrEqual(t, len(told), 4, "what was overtaken is left out")
}
