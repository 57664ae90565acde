package reconnect

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestGateLetsNobodyInOnceShut(t *testing.T) {
	t.Parallel()
	g := newGate()
	require.True(t, g.enter())
	g.leave()
	require.Zero(t, g.shut(t.Context()))
	require.False(t, g.enter())
	require.Zero(t, g.shut(t.Context()), "again")
}

func TestGateWaitsForThoseInside(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		require.True(t, g.enter())
		require.True(t, g.enter())
		time.AfterFunc(time.Second, g.leave)
		time.AfterFunc(3*time.Second, g.leave)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		require.EqualValues(t, 1, g.shut(ctx), "who is inside when the time is over")
		began := time.Now()
		require.Zero(t, g.shut(t.Context()))
		require.Equal(t, time.Second, time.Since(began))
	})
}

// Whoever was let in has left when shut returns.
func TestGateIsExact(t *testing.T) {
	t.Parallel()
	for range 200 {
		g := newGate()
		var inside atomic.Int64
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for g.enter() {
					inside.Add(1)
					inside.Add(-1)
					g.leave()
				}
			})
		}
		require.Zero(t, g.shut(t.Context()))
		require.Zero(t, inside.Load())
		wg.Wait()
	}
}
