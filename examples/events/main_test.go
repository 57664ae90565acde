package main

import (
	"context"
	"io"
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
	conn, err := reconnect.Dial(t.Context(), broker.URL(), reconnect.Config{Name: testenv.Name(t, "example"), Logger: testenv.Logger(io.Discard)})
	require.NoError(t, err)
	defer conn.Close(context.Background())
	name := testenv.Name(t, "events")
	broker.Tidy(t, name)
	var out strings.Builder
	err = story(t.Context(), conn, name, &out)
	t.Log(out.String())
	require.NoError(t, err)
	require.Contains(t, out.String(), "order.cancelled.eu       x         x\n", "order.# and *.*.eu, and not payment.failed.#")
	require.Contains(t, out.String(), "returned: nobody listens\n")
	require.Equal(t, len(keys), strings.Count(out.String(), " --> "))
}
