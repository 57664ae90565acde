package testenv_test

import (
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

func TestPostgres(t *testing.T) {
	names := map[string]bool{}
	for range 2 {
		u, err := url.Parse(testenv.Postgres(t))
		require.NoError(t, err)
		require.Equal(t, "postgres", u.Scheme)
		names[u.Path] = true
	}
	require.Len(t, names, 2, "each call gives a database of its own")
}
