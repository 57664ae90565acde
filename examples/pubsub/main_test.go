package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/pubsub"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestStory(t *testing.T) {
	testenv.NoLeaks(t)
	broker := testenv.Shared(t)
	event := pubsub.Exchange{Name: testenv.Name(t, "cache.invalidation")}
	broker.Tidy(t, event.Name)
	var out strings.Builder
	err := story(t.Context(), broker.URL(), event, &out)
	t.Log(out.String())
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(out.String(), "clears its cache\n"), "one gap, of the one that was cut off")
	require.Equal(t, 1, strings.Count(out.String(), "(old!)"), "the one that was cut off, while it was")
}
