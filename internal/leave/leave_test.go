package leave

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop, end := context.WithCancel(t.Context())
		ctx := With(t.Context(), stop)
		before, done := ToSend(ctx)
		defer done()
		require.NotNil(t, Stop(before))
		require.NoError(t, before.Err())
		end()
		<-Stop(ctx)
		synctest.Wait()
		require.ErrorIs(t, before.Err(), context.Canceled)
		require.NoError(t, ctx.Err(), "what was sent may be confirmed")
		require.Equal(t, ctx, Whole(before))
	})
}

func TestWithoutAWord(t *testing.T) {
	require.Nil(t, Stop(t.Context()))
	before, done := ToSend(t.Context())
	done()
	require.NoError(t, before.Err())
	require.Equal(t, before, Whole(before))
}
