package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// packageBudget is what the tests of a package may take on one broker; longer ones belong to make chaos.
const packageBudget = 90 * time.Second

// slowestShown is how many tests the summary lists.
const slowestShown = 10

// totals is what all passes came to.
type totals struct {
	passed, failed, skipped int // tests, with their subtests
	plain                   int // runs whose tests are not counted: benchmarks
	ranOn                   []string
	leftOut                 []string
	leftToContainers        map[testName]string // what the summary says of it unless it ran there
	ranOnContainers         map[testName]bool
	failedPackages          []string
	problems                []string // other than failed tests
	tests, packages         []timing
}

type timing struct {
	name string
	took time.Duration
}

// testName is a test or a subtest.
type testName struct{ pkg, test string }

func newTotals() *totals {
	return &totals{leftToContainers: make(map[testName]string), ranOnContainers: make(map[testName]bool)}
}

// fail notes a failure that is not a test's.
func (t *totals) fail(problem string) { t.problems = append(t.problems, problem) }

// ranPlain takes in a run whose tests are not counted.
func (t *totals) ranPlain(err error) {
	t.plain++
	if err != nil {
		t.fail(err.Error())
	}
}

// timed takes in how long a top-level test or a package took.
func (t *totals) timed(where string, e event) {
	if e.Test == "" {
		t.packages = append(t.packages, timing{e.Package + " on " + where, e.seconds()})
		return
	}
	t.tests = append(t.tests, timing{e.Package + " " + e.Test + " on " + where, e.seconds()})
}

// settle counts as skipped those tests that were left to the pass on containers and did not run there after all.
func (t *totals) settle() {
	var lost []string
	for name, line := range t.leftToContainers {
		if !t.ranOnContainers[name] {
			lost = append(lost, line)
		}
	}
	clear(t.leftToContainers)
	slices.Sort(lost)
	t.skipped += len(lost)
	t.leftOut = append(t.leftOut, lost...)
}

// summary prints what it all came to and returns the exit status.
func (t *totals) summary(w io.Writer, all bool) int {
	t.settle()
	if t.plain == 0 && t.passed+t.failed == 0 && len(t.problems) == 0 {
		t.fail("no test ran")
	}
	if all && len(t.leftOut) > 0 {
		t.fail("left out, where nothing may be (CI=true or WARREN_REQUIRE_ALL=1)")
	}
	fmt.Fprintln(w)
	list(w, "ran on", t.ranOn)
	list(w, "left out", t.leftOut)
	if t.plain == 0 {
		list(w, "slowest tests", slowest(t.tests, slowestShown, 0))
	}
	if over := slowest(t.packages, len(t.packages), packageBudget); len(over) > 0 {
		list(w, fmt.Sprintf("packages over %.0f s", packageBudget.Seconds()), over)
	}
	if len(t.failedPackages) > 0 {
		list(w, "failed packages", t.failedPackages)
	}
	for _, p := range t.problems {
		fmt.Fprintln(w, "FAIL:", p)
	}
	if t.plain == 0 {
		fmt.Fprintf(w, "%d passed, %d failed, %d skipped\n", t.passed, t.failed, t.skipped)
	}
	if t.failed > 0 || len(t.problems) > 0 {
		return 1
	}
	return 0
}

// list prints lines under a title, on one line if there is only one.
func list(w io.Writer, title string, lines []string) {
	switch len(lines) {
	case 0:
		fmt.Fprintf(w, "%s: nothing\n", title)
	case 1:
		fmt.Fprintf(w, "%s: %s\n", title, strings.TrimSpace(lines[0]))
	default:
		fmt.Fprintf(w, "%s:\n  %s\n", title, strings.Join(lines, "\n  "))
	}
}

// slowest returns the n that took longest, of those that took at least as long as given, longest first.
func slowest(all []timing, n int, atLeast time.Duration) []string {
	sorted := slices.SortedFunc(slices.Values(all), func(a, b timing) int { return cmp.Compare(b.took, a.took) })
	var lines []string
	for _, t := range sorted[:min(n, len(sorted))] {
		if t.took >= atLeast {
			lines = append(lines, fmt.Sprintf("%6.2f s  %s", t.took.Seconds(), t.name))
		}
	}
	return lines
}
