package consume

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// Everything at once, at random: every message is handled or dead-lettered, none is lost, nothing hangs, and no
// worker has two consumers.
func TestChaos(t *testing.T) {
	for name, batch := range map[string]bool{"single": false, "batch": true} {
		t.Run(name, func(t *testing.T) {
			const n = 1500
			r := newRig(t, nil)
			var mu sync.Mutex
			done := map[string]bool{}
			handle := func(d amqp.Delivery) error {
				switch rand.IntN(60) {
				case 0:
					return busy{time.Duration(1+rand.IntN(30)) * time.Millisecond}
				case 1:
					time.Sleep(time.Duration(rand.IntN(30)) * time.Millisecond) // a handler's work
				}
				if id, _ := strconv.Atoi(d.MessageId); id%100 == 7 {
					if id%200 == 7 {
						panic("poison")
					}
					return errBad
				}
				mu.Lock()
				done[d.MessageId] = true
				mu.Unlock()
				return nil
			}
			cfg := r.config(func(_ context.Context, d amqp.Delivery) error { return handle(d) })
			if batch {
				cfg.Handler, cfg.BatchSize, cfg.BatchWait = nil, 8, 2*time.Millisecond
				cfg.Batch = func(_ context.Context, ds []amqp.Delivery) error {
					errs := make(each, len(ds))
					for i, d := range ds {
						errs[i] = guarded(func() error { return handle(d) })
					}
					return errs
				}
			}
			cfg.Concurrency, cfg.Prefetch, cfg.SlowStart = 4, 24, true
			l, err := New(cfg)
			require.NoError(t, err)
			run := startLoop(t, l)
			deadline := time.Now().Add(5 * time.Second)
			for sent := 0; sent < n || time.Now().Before(deadline); {
				if sent < n {
					r.publish(sent, 50)
					sent += 50
				}
				switch rand.IntN(6) {
				case 0:
					r.broker.CutConnections(t, r.link.name)
				case 1:
					r.broker.CloseChannels(t, r.link.name)
				case 2:
					l.Pause()
				case 3:
					l.Resume()
				case 4:
					require.NoError(t, run.stop())
					run = startLoop(t, l)
				}
				time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond) // at random
			}
			l.Resume()
			r.eventually(func() bool {
				q := r.broker.Queue(t, r.queue)
				return q.Ready+q.Unacked == 0 && q.Consumers == 4
			}, "queue empty, one consumer per worker")
			require.NoError(t, run.stop())
			ended := map[string]bool{} // handled or dead-lettered, which the broker does in its own time
			for id := range done {
				ended[id] = true
			}
			r.eventually(func() bool {
				for _, d := range r.drainQueue(r.dlq) {
					id, _ := strconv.Atoi(d.MessageId)
					require.Equal(t, 7, id%100, "%s died though healthy", d.MessageId)
					ended[d.MessageId] = true
				}
				return len(ended) == n
			}, "each of %d messages is handled or dead-lettered", n)
		})
	}
}

func guarded(fn func() error) (err error) {
	defer recovered(&err)
	return fn()
}

// The same for two ordered instances: first sight of each message is in order.
func TestOrderedChaos(t *testing.T) {
	const n = 800
	r := newOrderedRig(t)
	var mu sync.Mutex
	var order []int
	seen, inside := map[int]bool{}, 0
	h := func(_ context.Context, d amqp.Delivery) error {
		mu.Lock()
		inside++
		id, _ := strconv.Atoi(d.MessageId)
		if !seen[id] {
			seen[id] = true
			order = append(order, id)
		}
		mu.Unlock()
		defer func() { mu.Lock(); inside--; mu.Unlock() }()
		if rand.IntN(40) == 0 {
			return busy{time.Duration(1+rand.IntN(20)) * time.Millisecond}
		}
		return nil
	}
	var runs []*run
	var links []*link
	for range 2 {
		cfg := r.config(h)
		cfg.Ordered, cfg.Prefetch = true, 4
		links = append(links, newLink(t, r.broker.URL()))
		cfg.Supervise = links[len(links)-1].Supervise
		runs = append(runs, start(t, cfg))
	}
	for sent := 0; sent < n; sent += 20 {
		r.publish(sent, 20)
		i := rand.IntN(2)
		switch rand.IntN(5) {
		case 0:
			r.broker.CutConnections(t, links[i].name)
		case 1:
			r.broker.CloseChannels(t, links[i].name)
		case 2:
			runs[i].Pause()
			runs[i].Resume()
		case 3:
			require.NoError(t, runs[i].stop())
			runs[i] = startLoop(t, runs[i].Loop)
		}
		time.Sleep(time.Duration(rand.IntN(60)) * time.Millisecond) // at random
	}
	r.empty(0)
	for _, l := range runs {
		require.NoError(t, l.stop())
	}
	require.Len(t, order, n)
	require.True(t, slices.IsSorted(order))
}
