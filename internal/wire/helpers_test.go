package wire

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// requireFaults requires that err consists of exactly the given lines and is permanent, or is nil when there are none.
func requireFaults(t *testing.T, err error, lines ...string) {
	t.Helper()
	if len(lines) == 0 {
		require.NoError(t, err)
		return
	}
	require.Error(t, err)
	require.Equal(t, lines, strings.Split(err.Error(), "\n"))
	require.True(t, permanent(err))
}

func permanent(err error) bool {
	var p interface{ Permanent() bool }
	return errors.As(err, &p) && p.Permanent()
}

func x(n int) string { return strings.Repeat("x", n) }
