package consume

import (
	"context"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// each is shaped like reconnect.BatchError.
type each []error

func (e each) Error() string   { return "some failed" }
func (e each) Unwrap() []error { return e }

// batches records what a batch handler got.
type batches struct {
	mu  sync.Mutex
	all [][]string
}

func (b *batches) add(ds []amqp.Delivery) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	var ids []string
	for _, d := range ds {
		ids = append(ids, d.MessageId)
	}
	b.all = append(b.all, ids)
	return len(b.all)
}

func (b *batches) flat() (ids []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, x := range b.all {
		ids = append(ids, x...)
	}
	return ids
}

func (r *rig) batchConfig(h BatchHandler) Config {
	cfg := r.config(nil)
	cfg.Batch = h
	return cfg
}

func TestBatches(t *testing.T) {
	const n = 1050
	r := newRig(t, nil)
	r.publish(0, n)
	var got batches
	cfg := r.batchConfig(func(_ context.Context, ds []amqp.Delivery) error {
		got.add(ds)
		return nil
	})
	cfg.BatchWait = 500 * time.Millisecond // in which a slow disk, too, lets the broker send what was acknowledged for
	l := start(t, cfg)
	r.empty(0)
	require.NoError(t, l.stop())
	require.Equal(t, ids(0, n), got.flat())
	require.Equal(t, Stats{Handled: n}, l.Stats())
	got.mu.Lock()
	defer got.mu.Unlock()
	require.Less(t, len(got.all), 25, "full batches")
	for _, b := range got.all {
		require.LessOrEqual(t, len(b), 100)
	}
}

// An error for each: some done, some failed, some not now. Those that wait are tried again, the rest is settled at once.
func TestBatchOfEverything(t *testing.T) {
	r := newRig(t, nil)
	r.publish(0, 6)
	var got batches
	settled := make(chan struct{})
	cfg := r.batchConfig(func(_ context.Context, ds []amqp.Delivery) error {
		switch got.add(ds) {
		case 1:
			return each{nil, busy{50 * time.Millisecond}, errBad, nil, busy{50 * time.Millisecond}, nil}
		case 2:
			<-settled
			return busy{50 * time.Millisecond} // all of it
		}
		return nil
	})
	cfg.BatchSize, cfg.BatchWait = 6, long
	l := start(t, cfg)
	r.eventually(func() bool { return r.broker.Queue(t, r.queue).Unacked == 2 }, "two wait")
	close(settled)
	r.empty(1)
	require.NoError(t, l.stop())
	got.mu.Lock()
	defer got.mu.Unlock()
	require.Equal(t, [][]string{ids(0, 6), {"1", "4"}, {"1", "4"}}, got.all)
	require.Equal(t, Stats{Handled: 5, Failed: 1, NotNow: 4}, l.Stats())
	require.Equal(t, "2", r.drainQueue(r.dlq)[0].MessageId)
	require.Equal(t, 1, r.link.channels())
}

func TestBatchFailsWhole(t *testing.T) {
	for name, fail := range map[string]func() error{
		"error": func() error { return errBad },
		"panic": func() error { panic("boom") },
		"other": func() error { return each{nil, errBad} }, // of another length
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			r.publish(0, 3)
			cfg := r.batchConfig(func(context.Context, []amqp.Delivery) error { return fail() })
			cfg.BatchSize, cfg.BatchWait = 3, long
			l := start(t, cfg)
			r.empty(3)
			require.NoError(t, l.stop())
			require.EqualValues(t, 3, l.Stats().Failed)
		})
	}
}

// After three refusals in a row one message is tried at a time, until one succeeds.
func TestBatchOneAtATimeAfterThree(t *testing.T) {
	r := newRig(t, nil)
	r.publish(0, 4)
	var got batches
	cfg := r.batchConfig(func(_ context.Context, ds []amqp.Delivery) error {
		if got.add(ds) <= 4 {
			return busy{10 * time.Millisecond}
		}
		return nil
	})
	cfg.BatchSize, cfg.BatchWait = 4, long
	l := start(t, cfg)
	r.empty(0)
	require.NoError(t, l.stop())
	all := ids(0, 4)
	require.Equal(t, [][]string{all, all, all, {"0"}, {"0"}, {"1", "2", "3"}}, got.all)
	require.EqualValues(t, 4, l.Stats().Handled)
}

func TestBatchWaitsNotForEver(t *testing.T) {
	r := newRig(t, nil)
	r.publish(0, 2)
	var got batches
	cfg := r.batchConfig(func(_ context.Context, ds []amqp.Delivery) error {
		got.add(ds)
		return nil
	})
	cfg.MaxBody, cfg.BatchWait = 1, 30*time.Millisecond
	l := start(t, cfg)
	r.empty(0)
	r.publish(9, 2) // 9 and the too large 10
	r.empty(1)
	require.NoError(t, l.stop())
	require.Equal(t, []string{"0", "1", "9"}, got.flat())
}

// While a batch gathers, or waits, a stop hands it back.
func TestBatchIsHandedBack(t *testing.T) {
	r := newRig(t, nil)
	r.publish(0, 7)
	var got batches
	cfg := r.batchConfig(func(_ context.Context, ds []amqp.Delivery) error {
		got.add(ds)
		return busy{time.Hour}
	})
	cfg.BatchSize, cfg.BatchWait, cfg.Prefetch = 5, time.Hour, 10
	l := start(t, cfg)
	r.eventually(func() bool { return len(got.flat()) == 5 }, "one full")
	require.NoError(t, l.stop())
	again := start(t, cfg)
	r.eventually(func() bool { return len(got.flat()) == 10 }, "again")
	require.NoError(t, again.stop())
	rest := r.drainQueue(r.queue)
	require.Len(t, rest, 7)
	for _, d := range rest {
		require.Equal(t, int64(2), returns(d))
	}
}

func TestBatchSlowStartAndCut(t *testing.T) {
	const n = 600
	r := newRig(t, nil)
	r.publish(0, n)
	var got batches
	cut := make(chan struct{}, n)
	cfg := r.batchConfig(func(_ context.Context, ds []amqp.Delivery) error {
		got.add(ds)
		cut <- struct{}{}
		time.Sleep(2 * time.Millisecond) // a handler's work
		return nil
	})
	cfg.BatchSize, cfg.SlowStart, cfg.BatchWait = 32, true, 5*time.Millisecond
	l := start(t, cfg)
	for range 3 {
		for range 4 {
			waitFor(t, "batch", cut)
		}
		r.broker.CutConnections(t, r.link.name)
	}
	r.empty(0)
	require.NoError(t, l.stop())
	require.Subset(t, got.flat(), ids(0, n))
}
