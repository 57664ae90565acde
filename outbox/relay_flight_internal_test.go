package outbox

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestInFlight(t *testing.T) {
	f := newInFlight()
	require.NotNil(t, f.all(), "NULL would leave nothing to fetch")
	require.Empty(t, f.all())
	f.add(3, 1, 2)
	f.add(3)
	f.remove(1, 7)
	require.ElementsMatch(t, []int64{2, 3}, f.all())
	require.Equal(t, 2, f.len())
}
