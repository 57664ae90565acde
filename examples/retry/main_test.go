package main

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestStory(t *testing.T) {
	testenv.NoLeaks(t)
	broker := testenv.Shared(t)
	conn, err := reconnect.Dial(t.Context(), broker.URL(), reconnect.Config{Name: testenv.Name(t, "example"), Logger: quiet})
	require.NoError(t, err)
	defer conn.Close(context.Background())
	name := testenv.Name(t, "payments")
	broker.Tidy(t, name)
	var out strings.Builder
	err = story(t.Context(), conn, name, &out)
	t.Log(out.String())
	require.NoError(t, err)
	require.GreaterOrEqual(t, strings.Count(out.String(), "the bank does not answer"), 9)
	require.Equal(t, 4, strings.Count(out.String(), " paid\n"))
	require.Equal(t, 3, strings.Count(out.String(), "   dead letter "))
	for _, r := range out.String() {
		require.True(t, r == '\n' || r >= ' ' && r <= '~', "%q on the terminal", r)
	}
}
