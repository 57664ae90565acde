package backoff_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/warrenmq/warren/internal/backoff"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const ms = time.Millisecond

func TestDelay(t *testing.T) {
	for _, tt := range []struct {
		policy  backoff.Policy
		attempt int
		full    time.Duration
	}{
		{backoff.Policy{}, math.MinInt, 0},
		{backoff.Policy{}, -1, 0},
		{backoff.Policy{}, 0, 0},
		{backoff.Policy{}, 1, 100 * ms},
		{backoff.Policy{}, 2, 200 * ms},
		{backoff.Policy{}, 3, 400 * ms},
		{backoff.Policy{}, 9, 25600 * ms},
		{backoff.Policy{}, 10, 30 * time.Second},
		{backoff.Policy{}, 11, 30 * time.Second},
		{backoff.Policy{}, math.MaxInt, 30 * time.Second},
		{backoff.Policy{Min: -1, Max: -1}, 1, 100 * ms},
		{backoff.Policy{Min: ms, Max: 8 * ms}, 4, 8 * ms},
		{backoff.Policy{Min: ms, Max: 8 * ms}, 5, 8 * ms},
		{backoff.Policy{Min: ms, Max: 7 * ms}, 4, 7 * ms},
		{backoff.Policy{Min: time.Minute}, 1, time.Minute},
		{backoff.Policy{Min: time.Minute, Max: time.Second}, 3, time.Minute},
		{backoff.Policy{Min: 1, Max: math.MaxInt64}, 62, 1 << 61},
		{backoff.Policy{Min: 1, Max: math.MaxInt64}, 63, 1 << 62},
		{backoff.Policy{Min: 1, Max: math.MaxInt64}, 64, math.MaxInt64},
		{backoff.Policy{Min: math.MaxInt64, Max: math.MaxInt64}, 2, math.MaxInt64},
		{backoff.Policy{Min: 1, Max: 1}, 5, 1},
	} {
		t.Run(fmt.Sprintf("%v attempt %d", tt.policy, tt.attempt), func(t *testing.T) {
			for range 200 {
				got := tt.policy.Delay(tt.attempt)
				require.GreaterOrEqual(t, got, tt.full/2)
				require.LessOrEqual(t, got, tt.full)
			}
		})
	}
}

func TestDelayIsJittered(t *testing.T) {
	low, high := false, false
	for range 1000 {
		d := backoff.Policy{Min: time.Second}.Delay(1)
		low = low || d < 600*ms
		high = high || d > 900*ms
	}
	require.True(t, low && high)
}

func FuzzDelay(f *testing.F) {
	f.Add(int64(0), int64(0), 0)
	f.Add(int64(1), int64(math.MaxInt64), 64)
	f.Add(int64(math.MaxInt64), int64(1), math.MaxInt)
	f.Fuzz(func(t *testing.T, least, most int64, attempt int) {
		p := backoff.Policy{Min: time.Duration(least), Max: time.Duration(most)}
		d := p.Delay(attempt)
		if attempt <= 0 {
			require.Zero(t, d)
			return
		}
		if least <= 0 {
			p.Min = backoff.DefaultMin
		}
		if most <= 0 {
			p.Max = backoff.DefaultMax
		}
		require.GreaterOrEqual(t, d, p.Min/2)
		require.LessOrEqual(t, d, max(p.Min, p.Max))
	})
}

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		require.NoError(t, backoff.Sleep(t.Context(), time.Hour))
		require.Equal(t, time.Hour, time.Since(start))

		require.NoError(t, backoff.Sleep(t.Context(), 0))
		require.NoError(t, backoff.Sleep(t.Context(), -1))
		require.Equal(t, time.Hour, time.Since(start))

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, backoff.Sleep(ctx, time.Hour), context.DeadlineExceeded)
		require.Equal(t, time.Hour+time.Minute, time.Since(start))
		require.ErrorIs(t, backoff.Sleep(ctx, 0), context.DeadlineExceeded)
		require.Equal(t, time.Hour+time.Minute, time.Since(start))
	})
}

func TestCounter(t *testing.T) {
	next := func(t *testing.T, c *backoff.Counter, full time.Duration) time.Duration {
		t.Helper()
		d := c.Next()
		require.GreaterOrEqual(t, d, full/2)
		require.LessOrEqual(t, d, full)
		return d
	}

	t.Run("grows while nothing holds", func(t *testing.T) {
		c := backoff.NewCounter(backoff.Policy{})
		require.Zero(t, c.Attempts())
		for i, full := range []time.Duration{0, 100 * ms, 200 * ms, 400 * ms} {
			next(t, c, full)
			require.Equal(t, i+1, c.Attempts())
			c.Lost(0)
		}
		c.Lost(999 * ms)
		next(t, c, 800*ms)
	})
	t.Run("a second is enough after a short delay", func(t *testing.T) {
		c := backoff.NewCounter(backoff.Policy{})
		next(t, c, 0)
		next(t, c, 100*ms)
		c.Lost(time.Second)
		require.Zero(t, c.Attempts())
		next(t, c, 0)
		next(t, c, 100*ms)
	})
	t.Run("what held for less than the delay before it does not count", func(t *testing.T) {
		c := backoff.NewCounter(backoff.Policy{Min: time.Minute, Max: time.Hour})
		next(t, c, 0)
		d := next(t, c, time.Minute)
		c.Lost(d - 1)
		d = next(t, c, 2*time.Minute)
		c.Lost(d)
		next(t, c, 0)
	})
	t.Run("Reset", func(t *testing.T) {
		c := backoff.NewCounter(backoff.Policy{})
		next(t, c, 0)
		next(t, c, 100*ms)
		c.Reset()
		require.Zero(t, c.Attempts())
		next(t, c, 0)
	})
}
