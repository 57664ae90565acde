package main

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// On a broker that is only an address, what would break it is left out, and seen to be.
func TestEveryFigureComesOutRight(t *testing.T) {
	broker := testenv.Shared(t)
	broker.Tidy(t, "tour.")
	tour := newTour(nil, broker.URL(), nil)
	tour.database = testenv.Postgres(t)
	out := told(t, tour, 30)
	require.Contains(t, out, "LEFT OUT: ")
	require.Regexp(t, `figures came out right; 1 of \d+ chapters left out\n`, out)
}

func TestEveryFigureOfABrokenBrokerComesOutRight(t *testing.T) {
	all := chapters
	t.Cleanup(func() { chapters = all })
	chapters = slices.DeleteFunc(slices.Clone(all), func(c chapter) bool { return !c.breaks })
	node := testenv.Node(t)
	node.Tidy(t, "tour.")
	out := told(t, newTour(nil, node.URL(), lent{node}), 25)
	require.NotContains(t, strings.ToLower(out), "left out")
}

// told tells the chapters, checks what holds for every tour, and returns what the reader sees.
func told(t *testing.T, tour *tour, figures int) string {
	t.Helper()
	testenv.NoLeaks(t)
	var out strings.Builder
	tour.out = &out
	err := tellAll(t.Context(), tour)
	t.Log(out.String())
	require.NoError(t, err)
	require.Zero(t, tour.wrong)
	require.GreaterOrEqual(t, tour.right, figures, "the chapters compare their figures")
	require.NotContains(t, out.String(), "WRONG")
	for _, r := range out.String() {
		require.True(t, r == '\n' || r >= ' ' && r <= '~', "%q on the terminal", r)
	}
	return out.String()
}

// lent is a test's node as the tour wants it: a fault that cannot be made fails the test by itself.
type lent struct{ *testenv.FaultNode }

func (l lent) Freeze() error                          { l.FaultNode.Freeze(); return nil }
func (l lent) Thaw() error                            { l.FaultNode.Thaw(); return nil }
func (l lent) Alarm(_ context.Context, on bool) error { l.FaultNode.Alarm(on); return nil }

// Without a database the chapters that need one are left out, and seen to be.
func TestLeavesOutWhatNeedsADatabase(t *testing.T) {
	all := chapters
	t.Cleanup(func() { chapters = all })
	chapters = slices.DeleteFunc(slices.Clone(all), func(c chapter) bool { return !c.stores })
	out := told(t, newTour(nil, "", nil), 0)
	require.Equal(t, len(chapters), strings.Count(out, "LEFT OUT: this chapter needs a PostgreSQL server."))
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
			chapters = []chapter{{title: "one", tell: chapterOf(tt.tell)}}
			err := tellAll(t.Context(), newTour(&out, "", nil))
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
