package main

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// Every run of either side does what it should, briefly, and has found out what its row shows.
func TestEachRun(t *testing.T) {
	broker := testenv.Shared(t)
	s := &stand{options: options{time: 20 * time.Millisecond, pairs: 1}, url: broker.URL(), name: testenv.Name(t, "q"), conn: broker.Dial(t)}
	for _, c := range []benchCase{
		{path: "publish", queue: quorum, callers: 4, size: 256},
		{path: "batch", queue: classic, callers: 1, size: 256},
		{path: "consume", queue: quorum, callers: 2, size: 16, prefetch: 100, messages: 300, busy: 1},
		{path: "subscribe", queue: quorum, callers: 1, size: 16, messages: 300},
		{path: "call", queue: classic, callers: 2, size: 16},
		{path: "call-fast", queue: classic, callers: 1, size: 16},
		{path: "latency", queue: quorum, callers: 1, size: 16},
		{path: "idle", queue: classic, callers: 3},
		{path: "inflight", queue: classic, callers: 10000, size: 256},
		{path: "recover", queue: quorum, callers: 1, size: 16},
		{path: "topology", queue: classic, callers: 10},
	} {
		for _, side := range []string{raw, ours} {
			if paths[c.path][side] == nil {
				continue
			}
			t.Run(c.path+" "+side, func(t *testing.T) {
				sp := s.spec(c)
				sp.Side = side
				require.NoError(t, s.prepare(t.Context(), sp))
				defer func() { require.NoError(t, s.remove(sp)) }()
				if sp.isCall() {
					require.NoError(t, sp.serveOn(broker.Dial(t)))
				}
				f, err := sp.run(t.Context())
				require.NoError(t, err)
				switch c.path {
				case "idle", "inflight":
					require.Positive(t, f.Memory)
				case "recover":
					require.Positive(t, f.Published)
					require.Positive(t, f.Delivered)
				case "topology":
					require.Positive(t, f.Seconds)
				case "latency":
					require.Positive(t, f.P50)
				default:
					require.Positive(t, f.Rate)
					require.Positive(t, f.CPU)
					require.Positive(t, f.Allocs)
				}
			})
		}
	}
}

func TestSpread(t *testing.T) {
	require.Equal(t, spread{2, 4, 6}, spreadOf([]float64{7, 1, 4, 3, 2, 6, 5}))
	require.Equal(t, spread{5, 5, 5}, spreadOf([]float64{5}))
	require.Equal(t, spread{1, 2, 3}, spreadOf([]float64{3, 1}))
	require.Equal(t, "–", spreadOf([]float64{1, math.NaN()}).String())
}

func TestJudge(t *testing.T) {
	r := result{rate: spread{mid: 0.9}, cpu: spread{mid: 0.7}, ourSide: figures{Allocs: 34}}
	require.Equal(t, "**not rate ≥ 0.95**, CPU ≤ 0.8, **not allocations ≤ 33**", target{rate: 0.95, cpu: 0.8, allocs: 33}.judge(r))
	require.Empty(t, target{}.judge(r))
}

// What would fail after minutes of measuring, or measure nothing, fails at once.
func TestOptionsAreCheckedFirst(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for want, args := range map[string][]string{
		"no case has such a name":    {"-run", "publisch"},
		"-run: error parsing regexp": {"-run", "("},
		"there are only flags":       {"P1", "-pairs", "1"},
		"must be positive":           {"-pairs", "0"},
		"-o: open":                   {"-o", filepath.Join(missing, "bench.md")},
		"is not a directory":         {"-profiles", missing},
		"not defined":                {"-nothing"},
	} {
		_, err := parse(args)
		require.ErrorContains(t, err, want, args)
	}
	_, err := parse([]string{"-long", "-run", "memory of an entity"})
	require.NoError(t, err)

	kept := filepath.Join(t.TempDir(), "bench.md")
	require.NoError(t, os.WriteFile(kept, []byte("before"), 0o600))
	_, err = parse([]string{"-o", kept})
	require.NoError(t, err)
	now, err := os.ReadFile(kept)
	require.NoError(t, err)
	require.Equal(t, "before", string(now))
}

// The shortest latency run is one message, and not one that waits for none.
func TestLatencyOfOne(t *testing.T) {
	require.Equal(t, 1, newTrips(spec{For: time.Microsecond}).want)
}

// A run that is ended in the middle leaves nothing at the broker: the parent removes what the run has declared.
func TestNothingIsLeft(t *testing.T) {
	broker := testenv.Shared(t)
	s := &stand{options: options{time: 20 * time.Millisecond, pairs: 1}, url: broker.URL(), name: testenv.Name(t, "q"), conn: broker.Dial(t)}
	c := benchCase{path: "topology", queue: classic, callers: 10}
	sp := s.spec(c)
	require.NoError(t, s.prepare(t.Context(), sp))
	conn, err := sp.dialOurs(t.Context())
	require.NoError(t, err)
	require.NoError(t, conn.Declare(t.Context(), sp.entities()))
	require.NoError(t, conn.Close(t.Context()))
	require.NoError(t, s.remove(sp))

	ended, stop := context.WithCancel(t.Context())
	stop()
	half := s.spec(benchCase{path: "subscribe", queue: quorum, size: 16, messages: 10})
	require.ErrorIs(t, s.prepare(ended, half), context.Canceled)
	require.NoError(t, s.remove(half))

	for _, queue := range []string{sp.Queue, sp.entities().Queues[0].Name, half.Queue, half.Queue + ".dlq"} {
		ch, err := s.conn.Channel()
		require.NoError(t, err)
		_, err = ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		require.Error(t, err, queue)
	}
}
