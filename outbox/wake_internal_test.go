package outbox

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

func TestHub(t *testing.T) {
	var h hub
	require.True(t, h.wakeAll(), "nobody here: others may be elsewhere")
	a, b := h.subscribe(), h.subscribe()
	for range 3 {
		require.True(t, h.wakeAll())
	}
	require.Len(t, a.C, 1)
	<-a.C
	require.Empty(t, a.C, "once, however often it was called")
	b.alone.Store(true)
	require.False(t, h.wakeAll())
	b.close()
	require.True(t, h.wakeAll())
	require.Len(t, a.C, 1)
	a.close()
}

// TestDebouncer: at once, then at most every notifyPause, and once after the last call.
func TestDebouncer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d debouncer
		start := time.Now()
		var at []time.Duration
		fn := func() {
			at = append(at, time.Since(start))
			time.Sleep(2 * time.Millisecond)
		}
		for range 20 {
			d.trigger(fn)
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, []time.Duration{0, 7 * time.Millisecond, 14 * time.Millisecond, 21 * time.Millisecond}, at)
		d.trigger(fn)
		time.Sleep(time.Second)
		synctest.Wait()
		require.Len(t, at, 5)
	})
}

// listen returns what comes on the outbox's channel.
func listen(t *testing.T, box *Outbox, url string) *atomic.Int32 {
	t.Helper()
	pool := newPool(t, url, nil)
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `LISTEN "`+scan[string](t, box.pool, "SELECT "+box.tables.channel())+`"`)
	require.NoError(t, err)
	var heard atomic.Int32
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer conn.Release()
		for {
			if _, err := conn.Conn().WaitForNotification(ctx); err != nil {
				return
			}
			heard.Add(1)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return &heard
}

// TestWake reaches relays of other processes by a notification outside of any transaction, those of its own without one.
func TestWake(t *testing.T) {
	t.Parallel()
	u := testenv.Postgres(t)
	box := boxIn(t, newPool(t, u, nil), Config{})
	heard := listen(t, box, u)
	enqueue(t, box, Message{Key: "k"})
	testenv.Eventually(t, patience, func() bool { return heard.Load() == 1 }, "InTx wakes")
	for range 1000 {
		box.Wake()
	}
	testenv.Eventually(t, patience, func() bool { return heard.Load() > 1 }, "Wake wakes")

	w := box.wake.subscribe()
	defer w.close()
	box.Wake()
	require.Len(t, w.C, 1)
	w.alone.Store(true)
	testenv.Eventually(t, patience, func() bool { return !box.notify.busy() }, "the debouncer rests")
	before := heard.Load()
	for range 100 {
		box.Wake()
	}
	require.False(t, box.notify.busy(), "nobody else to wake")
	require.LessOrEqual(t, before, int32(50), "many calls, few notifications")
}

// busy tells whether something is still to be done.
func (d *debouncer) busy() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.running
}

// TestWakeWithoutDatabase: a database that is away, or a pool in use, holds nobody up.
func TestWakeWithoutDatabase(t *testing.T) {
	t.Parallel()
	proxy := testenv.Proxy(t, testenv.Postgres(t))
	box := boxIn(t, newPool(t, proxy.URL(), func(cfg *pgxpool.Config) { cfg.MaxConns = 1 }), Config{})
	conn, err := box.pool.Acquire(t.Context())
	require.NoError(t, err)
	took := time.Hour
	for n := 0; n < 3 && took >= notifyTime/2; n++ { // it would wait for notifyTime each time; the machine may pause once
		start := time.Now()
		box.Wake()
		took = min(took, time.Since(start))
		testenv.Eventually(t, patience, func() bool { return box.notifyFailures.Load() > 0 }, "gives up")
		testenv.Eventually(t, patience, func() bool { return !box.notify.busy() }, "the debouncer rests")
	}
	require.Less(t, took, notifyTime/2)
	conn.Release()
	box.Wake()
	testenv.Eventually(t, patience, func() bool { return box.notifyFailures.Load() == 0 }, "works again")
}
