package testenv_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/internal/testenv/provide"
)

// outcome is a testing.TB that notes how the test ended instead of ending it.
type outcome struct {
	testing.TB
	name            string
	skipped, failed bool
}

func (o *outcome) Helper()               {}
func (o *outcome) Name() string          { return o.name }
func (o *outcome) Skip(...any)           { o.skipped = true; panic(errStopped) }
func (o *outcome) Fatalf(string, ...any) { o.failed = true; panic(errStopped) }

func TestLeaveOut(t *testing.T) {
	before := testenv.SwapLeftOut(nil)
	t.Cleanup(func() { testenv.SwapLeftOut(before) })
	file := filepath.Join(t.TempDir(), "left-out")
	t.Setenv("WARREN_LEFT_OUT", file)
	address := testenv.At("amqp://elsewhere/")

	t.Run("allowed", func(t *testing.T) {
		t.Setenv("WARREN_REQUIRE_ALL", "")
		for _, name := range []string{"TestOne", "TestTwo"} {
			tb := &outcome{TB: t, name: name}
			require.PanicsWithValue(t, errStopped, func() { address.CutConnections(tb, "x") })
			require.True(t, tb.skipped)
		}
		require.Equal(t, []string{
			"TestOne: needs a broker that the test environment started",
			"TestTwo: needs a broker that the test environment started",
		}, testenv.SwapLeftOut(nil))
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, "TestOne: needs a broker that the test environment started\n"+
			"TestTwo: needs a broker that the test environment started\n", string(content))
	})
	t.Run("left to the containers", func(t *testing.T) {
		t.Setenv("WARREN_REQUIRE_ALL", "1")
		for containersToo, skipped := range map[string]bool{"1": true, "": false} {
			t.Setenv(provide.ContainersToo, containersToo)
			tb := &outcome{TB: t, name: "TestThree"}
			require.PanicsWithValue(t, errStopped, func() { testenv.LeaveToContainers(tb, "three nodes") })
			require.Equal(t, skipped, tb.skipped)
			require.Equal(t, !skipped, tb.failed)
		}
		require.Empty(t, testenv.SwapLeftOut(nil), "the suite has an eye on it")
	})
	t.Run("forbidden", func(t *testing.T) {
		t.Setenv("WARREN_REQUIRE_ALL", "1")
		tb := &outcome{TB: t, name: "TestThree"}
		require.PanicsWithValue(t, errStopped, func() { address.CloseChannels(tb, "x") })
		require.True(t, tb.failed)
		require.Empty(t, testenv.SwapLeftOut(nil))
	})
}
