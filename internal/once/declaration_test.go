package once

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/leave"
	"github.com/warrenmq/warren/reconnect"
)

// Publishes without a deadline that wait for each other's declaration all end after Timeout: the second one's does not begin
// when the first one's has passed.
func TestTimeoutHoldsForEveryOneThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDeclaration(nil, reconnect.PublisherConfig{Timeout: time.Second}, func(ctx context.Context) error {
			<-ctx.Done()                                               // a broker that is away
			return fmt.Errorf("%w: %w", ctx.Err(), context.Cause(ctx)) // as Conn.Declare does
		})
		began := time.Now()
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				err := d.Do(context.Background())
				assert.ErrorIs(t, err, context.DeadlineExceeded)
				assert.ErrorContains(t, err, "PublisherConfig.Timeout of 1s")
				assert.Equal(t, time.Second, time.Since(began))
			})
		}
		wg.Wait()
	})
}

// A caller that sends nothing more does not wait for what would have to be declared first.
func TestCallerThatStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDeclaration(nil, reconnect.PublisherConfig{Timeout: time.Minute}, func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		})
		stop, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		began := time.Now()
		require.ErrorIs(t, d.Do(leave.With(t.Context(), stop)), context.Canceled)
		require.Equal(t, time.Second, time.Since(began))
	})
}

// With -1 there is no limit, and a deadline of the caller's own is the only one.
func TestTimeoutIsForContextsWithoutDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		away := func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Hour):
				return errors.New("an hour has passed")
			}
		}
		require.EqualError(t, NewDeclaration(nil, reconnect.PublisherConfig{Timeout: -1}, away).Do(t.Context()), "an hour has passed")
		require.Equal(t, time.Hour, time.Since(began))

		began = time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, NewDeclaration(nil, reconnect.PublisherConfig{Timeout: time.Second}, away).Do(ctx), context.DeadlineExceeded)
		require.Equal(t, time.Minute, time.Since(began))
	})
}

// More than MaxWaiting are told so at once, and what was declared costs the publishes after it nothing.
func TestDeclarationBoundsWhatWaits(t *testing.T) {
	release := make(chan struct{})
	inside := make(chan struct{})
	d := NewDeclaration(nil, reconnect.PublisherConfig{MaxWaiting: 1}, func(context.Context) error { close(inside); <-release; return nil })
	var wg sync.WaitGroup
	wg.Go(func() { assert.NoError(t, d.Do(context.Background())) })
	<-inside
	require.ErrorIs(t, d.Do(t.Context()), reconnect.ErrBusy)
	close(release)
	wg.Wait()
	require.Zero(t, testing.AllocsPerRun(100, func() { _ = d.Do(context.Background()) }))
}
