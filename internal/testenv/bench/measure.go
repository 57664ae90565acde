package main

import (
	"bytes"
	"context"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// figures are what a run found out. The first are per message, but for Rate, P50 and P99.
type figures struct {
	Rate     float64 // messages a second
	CPU      float64 // of this process, user and system, in µs
	P50, P99 float64 // in µs; 0: not measured
	Allocs   float64
	Bytes    float64 // allocated
	Writes   float64 // write system calls

	// Of runs that measure something else: seconds, bytes, and the seconds from a cut to the first publish and delivery.
	Seconds, Memory, Published, Delivered float64
}

// mark is what has been used up at one moment.
type mark struct {
	at     time.Time
	cpu    time.Duration
	mem    runtime.MemStats
	writes float64
}

func now() (m mark) {
	runtime.ReadMemStats(&m.mem)
	m.writes, m.cpu, m.at = writeCalls(), cpuTime(), time.Now()
	return m
}

// since is what n messages have cost since m.
func (m mark) since(n int) figures {
	end := now()
	count := float64(max(1, n))
	return figures{
		Rate:   count / end.at.Sub(m.at).Seconds(),
		CPU:    float64((end.cpu - m.cpu).Nanoseconds()) / 1e3 / count,
		Allocs: float64(end.mem.Mallocs-m.mem.Mallocs) / count,
		Bytes:  float64(end.mem.TotalAlloc-m.mem.TotalAlloc) / count,
		Writes: (end.writes - m.writes) / count,
	}
}

// writeCalls is how many write system calls this process has made, as Linux counts them; 0 elsewhere.
func writeCalls() float64 {
	content, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return 0
	}
	_, rest, _ := bytes.Cut(content, []byte("syscw: "))
	number, _, _ := bytes.Cut(rest, []byte("\n"))
	n, _ := strconv.ParseFloat(string(number), 64)
	return n
}

// mostTimes is how many calls, of all callers, are timed without growing a slice.
const mostTimes = 1 << 17

// calls has so many callers call f, for a while that warms up and then for the measured time. f returns how many messages
// it has done.
func (s spec) calls(ctx context.Context, f func(context.Context) (int, error)) (figures, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	times := make([][]float64, s.Callers)
	for i := range times {
		times[i] = make([]float64, 0, mostTimes/s.Callers)
	}
	phase := func(d time.Duration, note bool) int {
		var n atomic.Int64
		var wg sync.WaitGroup
		end := time.Now().Add(d)
		for i := range s.Callers {
			wg.Go(func() {
				for at := time.Now(); at.Before(end) && ctx.Err() == nil; {
					did, err := f(ctx)
					if err != nil {
						cancel(err)
						return
					}
					n.Add(int64(did))
					last := at
					if at = time.Now(); note {
						times[i] = append(times[i], float64(at.Sub(last).Nanoseconds())/1e3)
					}
				}
			})
		}
		wg.Wait()
		return int(n.Load())
	}
	phase(s.For/4, false)
	runtime.GC()
	began := now()
	out := began.since(phase(s.For, true))
	out.P50, out.P99 = quantiles(slices.Concat(times...))
	return out, context.Cause(ctx)
}

func quantiles(v []float64) (p50, p99 float64) {
	if len(v) == 0 {
		return 0, 0
	}
	slices.Sort(v)
	return v[len(v)/2], v[len(v)*99/100]
}

// counter measures a consumer: from the tenth part of the messages on, so that no start is in it, to the last.
type counter struct {
	n        atomic.Int64
	from, to int64
	began    mark
	out      figures
	done     chan struct{}
}

func newCounter(messages int) *counter {
	return &counter{from: int64(messages / 10), to: int64(messages), done: make(chan struct{})}
}

// one counts a message, and may be called at the same time.
func (c *counter) one() {
	switch n := c.n.Add(1); n {
	case c.from:
		c.began = now()
	case c.to:
		c.out = c.began.since(int(n - c.from))
		close(c.done)
	}
}

func (c *counter) wait(ctx context.Context) (figures, error) {
	select {
	case <-c.done:
		return c.out, nil
	case <-ctx.Done():
		return figures{}, context.Cause(ctx)
	}
}
