package consume

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// Open names the queue for each channel, also while paused, and is told when that is no longer used; Watch is shown the
// queue at the pace it asks for.
func TestOpenAndWatch(t *testing.T) {
	r := newRig(t, nil)
	r.publish(0, 3)
	var opened, shut, looks atomic.Int64
	var depth atomic.Int64
	var seen record
	cfg := r.config(seen.handler)
	cfg.Queue, cfg.Concurrency = "nothing", 2
	cfg.Open = func(context.Context, *amqp.Channel) (string, func(), error) {
		opened.Add(1)
		return r.queue, func() { shut.Add(1) }, nil
	}
	cfg.Watch = func(q amqp.Queue, asked time.Time) time.Duration {
		require.Equal(t, r.queue, q.Name)
		require.WithinDuration(t, time.Now(), asked, long)
		depth.Store(int64(q.Messages))
		looks.Add(1)
		return 5 * time.Millisecond
	}
	l, err := New(cfg)
	require.NoError(t, err)
	l.Pause()
	run := startLoop(t, l)
	r.eventually(func() bool { return opened.Load() == 2 && looks.Load() > 2 && depth.Load() == 3 }, "opened and looked at while paused")
	require.Zero(t, seen.len())
	l.Resume()
	r.empty(0)
	r.eventually(func() bool { return depth.Load() == 0 }, "seen empty")

	r.broker.CutConnections(t, r.link.name)
	r.eventually(func() bool { return opened.Load() == 4 && shut.Load() == 2 }, "opened again")
	r.publish(3, 3)
	r.empty(0)
	require.NoError(t, run.stop())
	require.EqualValues(t, 4, shut.Load())
	require.EqualValues(t, 6, l.Stats().Handled)
}

// An Open that fails is called again with a fresh channel; a shutdown ends one that waits.
func TestOpenFails(t *testing.T) {
	r := newRig(t, nil)
	var tries atomic.Int64
	waits := make(chan struct{}, 1)
	cfg := r.config(func(context.Context, amqp.Delivery) error { return nil })
	cfg.Open = func(ctx context.Context, ch *amqp.Channel) (string, func(), error) {
		if tries.Add(1) < 3 {
			_, err := ch.QueueDeclarePassive(r.queue+".none", false, false, false, false, nil)
			return "", nil, err
		}
		waits <- struct{}{}
		<-ctx.Done()
		return "", nil, context.Cause(ctx)
	}
	l, err := New(cfg)
	require.NoError(t, err)
	run := startLoop(t, l)
	waitFor(t, "the third try", waits)
	began := time.Now()
	require.NoError(t, run.stop())
	require.Less(t, time.Since(began), 5*time.Second)
	require.EqualValues(t, 3, tries.Load())
}
