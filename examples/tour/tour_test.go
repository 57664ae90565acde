package main

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestEveryFigureComesOutRight(t *testing.T) {
	testenv.NoLeaks(t)
	broker := testenv.Shared(t)
	var out strings.Builder
	tour := newTour(&out, broker.URL())
	err := tellAll(t.Context(), tour)
	t.Log(out.String())
	require.NoError(t, err)
	require.Zero(t, tour.wrong)
	require.GreaterOrEqual(t, tour.right, 10, "the chapters compare their figures")
	require.NotContains(t, out.String(), "WRONG")
	for _, r := range out.String() {
		require.True(t, r == '\n' || r >= ' ' && r <= '~', "%q on the terminal", r)
	}
}

func TestWrongFigureIsReported(t *testing.T) {
	told := chapters
	t.Cleanup(func() { chapters = told })
	for _, tt := range []struct {
		name string
		tell func(*tour)
		ok   bool
	}{
		{"right", func(t *tour) { t.figure("f", 3, 3); t.between("b", 3, 3, 4) }, true},
		{"one too few", func(t *tour) { t.figure("f", 2, 3) }, false},
		{"below", func(t *tour) { t.between("b", 2, 3, 4) }, false},
		{"above", func(t *tour) { t.between("b", 5, 3, 4) }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			chapters = []chapter{{"one", chapterOf(tt.tell)}}
			err := tellAll(t.Context(), newTour(&out, ""))
			require.Equal(t, tt.ok, err == nil, "%v", err)
			require.Equal(t, tt.ok, !strings.Contains(out.String(), "WRONG"))
		})
	}
}

func chapterOf(tell func(*tour)) func(context.Context, *tour) error {
	return func(_ context.Context, t *tour) error {
		tell(t)
		return nil
	}
}
