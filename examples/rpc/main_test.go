package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// Everybody is told what happened, and at once where that is known. Nothing is left on the broker.
func TestCallersAreToldWhatHappened(t *testing.T) {
	testenv.NoLeaks(t)
	const calls = 120
	broker := testenv.Shared(t)
	broker.Tidy(t, "pricing.")
	var out strings.Builder
	r, err := play(t.Context(), &out, broker.URL(), calls)
	t.Log(out.String())
	require.NoError(t, err)

	require.Equal(t, "no server", r.nobody.told)
	fast, slow := len(r.shared["answered by fast-1"])+len(r.shared["answered by fast-2"]), len(r.shared["answered by slow"])
	require.Equal(t, calls, fast+slow)
	require.Positive(t, slow)
	require.Greater(t, fast, slow)
	for _, took := range r.shared["answered by slow"] {
		require.GreaterOrEqual(t, took, 100*time.Millisecond)
	}
	require.NotEmpty(t, r.failing["error of the server: sold-out"])
	require.Equal(t, "unknown: it may have been executed", r.killed.told)
	require.Less(t, r.killed.took, 3*time.Second)
	require.Equal(t, "answered", r.repeated.told)
	require.Equal(t, "heir", r.repeated.server)
	require.Equal(t, "too late", r.late.told)
	require.Greater(t, r.late.took, 250*time.Millisecond, "the half second begins before the clock of the call does")

	for _, c := range out.String() {
		require.True(t, c == '\n' || c >= ' ' && c <= '~', "%q on the terminal", c)
	}
}
