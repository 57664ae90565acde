package testenv

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/warrenmq/warren/internal/testenv/provide"
)

// leftOut collects the tests of this binary that were left out.
var leftOut struct {
	sync.Mutex
	lines []string
}

// leaveOut ends the test because the broker it runs on is only an address. Beside leaveToContainers it is the one way for a test to be skipped:
// each is listed by Main and, for a parent that wants to sum up, in the file WARREN_LEFT_OUT names. With
// WARREN_REQUIRE_ALL=1 it is a failure.
func leaveOut(tb testing.TB, why string) {
	tb.Helper()
	if os.Getenv("WARREN_REQUIRE_ALL") == "1" {
		tb.Fatalf("nothing may be left out (WARREN_REQUIRE_ALL=1), but this test needs %s", why)
	}
	line := fmt.Sprintf("%s: needs %s", tb.Name(), why)
	leftOut.Lock()
	leftOut.lines = append(leftOut.lines, line)
	leftOut.Unlock()
	if err := appendLine(os.Getenv("WARREN_LEFT_OUT"), line); err != nil {
		tb.Fatalf("note that the test is left out: %v", err)
	}
	tb.Skip("left out: needs " + why)
}

// leaveToContainers ends the test because it can only run on containers and the broker it runs on is none. Where the suite
// runs the same tests on containers as well, that leaves nothing out, and the suite sees to it that this test ran there;
// otherwise it is left out like any other.
func leaveToContainers(tb testing.TB, why string) {
	tb.Helper()
	if os.Getenv(provide.ContainersToo) == "1" {
		tb.Skip(provide.LeftToContainers + why)
	}
	leaveOut(tb, why)
}

// appendLine adds a line to a file that several processes write to: one write, in append mode.
func appendLine(path, line string) error {
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line + "\n")
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}

// printLeftOut lists the tests left out, to standard output as go test does with its own.
func printLeftOut() {
	leftOut.Lock()
	defer leftOut.Unlock()
	if len(leftOut.lines) == 0 {
		return
	}
	slices.Sort(leftOut.lines)
	fmt.Println("LEFT OUT:")
	for _, line := range leftOut.lines {
		fmt.Println("  " + line)
	}
}
