package once

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFailureIsNotFinal(t *testing.T) {
	s := New(-1)
	runs := 0
	attempt := func(err error) error {
		return s.Do(t.Context(), func(context.Context) error { runs++; return err })
	}
	require.EqualError(t, attempt(errors.New("no")), "no")
	require.NoError(t, attempt(nil))
	require.NoError(t, attempt(errors.New("never asked")))
	require.Equal(t, 2, runs)
}

func TestConcurrentCallersRunItOnce(t *testing.T) {
	s := New(-1)
	var runs atomic.Int32
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			require.NoError(t, s.Do(t.Context(), func(context.Context) error { runs.Add(1); return nil }))
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, runs.Load())
}

func TestWaitingEndsWithTheContext(t *testing.T) {
	s := New(-1)
	inside, release := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = s.Do(context.Background(), func(context.Context) error { close(inside); <-release; return nil })
	})
	<-inside
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.Do(ctx, func(context.Context) error { return nil }), context.Canceled)
	close(release)
	wg.Wait()
}

func TestMoreThanTheLimitFailAtOnce(t *testing.T) {
	s := New(1)
	inside, release := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = s.Do(context.Background(), func(context.Context) error { close(inside); <-release; return errors.New("no") })
	})
	<-inside
	require.ErrorIs(t, s.Do(t.Context(), func(context.Context) error { return nil }), ErrFull)
	close(release)
	wg.Wait()
	require.NoError(t, s.Do(t.Context(), func(context.Context) error { return nil }), "there is room again")
}
