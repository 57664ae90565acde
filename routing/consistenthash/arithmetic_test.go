package consistenthash

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestShare(t *testing.T) {
	for _, tt := range []struct{ partitions, instances, want int }{
		{9, 0, 9}, {9, 1, 9}, {9, 2, 5}, {9, 3, 3}, {9, 4, 3}, {9, 9, 1}, {9, 10, 1}, {1, 5, 1}, {1000, 3, 334},
	} {
		require.Equal(t, tt.want, share(tt.partitions, tt.instances), "%d by %d", tt.partitions, tt.instances)
		require.GreaterOrEqual(t, tt.want*max(1, tt.instances), tt.partitions, "the shares suffice, so moves come to an end")
	}
}

func TestPause(t *testing.T) {
	cfg, err := ConsumerConfig{}.complete(30 * time.Minute)
	require.NoError(t, err)
	require.Equal(t, 5*time.Minute, cfg.HandlerTimeout)
	require.Equal(t, 1500*time.Millisecond, cfg.pauses(time.Hour))
	for attempt, want := range []time.Duration{100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000} {
		require.Equal(t, want*time.Millisecond, cfg.pause(attempt+1))
	}
	cfg.InitialDelay = -1
	require.EqualValues(t, 1, cfg.pause(7))

	cfg, err = ConsumerConfig{InitialDelay: time.Minute}.complete(30 * time.Minute)
	require.NoError(t, err)
	require.Equal(t, time.Minute, cfg.MaxDelay, "not below InitialDelay")
	cfg, err = ConsumerConfig{Prefetch: 2}.complete(2 * time.Second)
	require.ErrorContains(t, err, "MaxAttempts: 5, with pauses")
	cfg, err = ConsumerConfig{}.complete(2 * time.Second)
	require.NoError(t, err)
	require.Equal(t, 100*time.Millisecond, cfg.HandlerTimeout, "what the pauses leave")
	cfg, err = ConsumerConfig{MaxAttempts: 1000}.complete(-1)
	require.NoError(t, err, "no consumer timeout")
}

func FuzzPause(f *testing.F) {
	f.Add(int64(1), int64(2), 3)
	f.Add(int64(math.MaxInt64/2+1), int64(math.MaxInt64), 64)
	f.Fuzz(func(t *testing.T, initial, most int64, attempt int) {
		cfg := ConsumerConfig{InitialDelay: time.Duration(initial), MaxDelay: time.Duration(most)}
		if initial < 1 || most < initial || attempt < 1 || attempt > 10_000 {
			return
		}
		d := cfg.pause(attempt)
		require.GreaterOrEqual(t, d, cfg.InitialDelay)
		require.LessOrEqual(t, d, cfg.MaxDelay)
		require.GreaterOrEqual(t, cfg.pause(attempt+1), d)
	})
}

func TestPhases(t *testing.T) {
	for _, phase := range []int{draining, filling} {
		for _, from := range []int{1, 42, 1000} {
			for _, to := range []int{1, 42, 1000} {
				v := phaseValue(phase, from, to)
				require.Greater(t, v, int64(maxCount))
				gotPhase, gotFrom, gotTo, ok := parsePhase(v)
				require.True(t, ok)
				require.Equal(t, []int{phase, from, to}, []int{gotPhase, gotFrom, gotTo})
			}
		}
	}
	for _, v := range []int64{0, 1, 1000, 300_010_001, math.MaxInt64, -1} {
		_, _, _, ok := parsePhase(v)
		require.False(t, ok, v)
	}
}
