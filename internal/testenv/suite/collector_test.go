package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/warrenmq/warren/internal/testenv/provide"
	"github.com/warrenmq/warren/internal/testenv/secret"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// module is a module of small packages, one for each way a package can end.
var module = map[string]string{
	"go.mod": "module example.org/m\n\ngo 1.25.0\n",
	"good/good_test.go": `package good
import "testing"
func TestGood(t *testing.T) {
	t.Log("good says nothing")
	for _, name := range []string{"a", "b"} { t.Run(name, func(t *testing.T) { t.Parallel(); t.Log("nor does", name) }) }
}
func TestSkipped(t *testing.T) { t.Skip("left out: needs the moon") }
`,
	"bad/bad_test.go": `package bad
import ("fmt"; "testing")
func TestBad(t *testing.T) {
	t.Run("fine", func(t *testing.T) { t.Log("unseen") })
	t.Run("wrong", func(t *testing.T) { fmt.Println("printed"); t.Error("expected this") })
}
func TestFine(t *testing.T) {}
`,
	"panics/panics_test.go": `package panics
import ("os"; "testing")
func TestDies(t *testing.T) { t.Log("last words"); println("on stderr"); os.Exit(3) }
`,
	"broken/broken_test.go": "package broken\nimport \"testing\"\nfunc TestBroken(t *testing.T) { undefined() }\n",
	"leaks/leaks_test.go": `package leaks
import ("fmt"; "os"; "testing")
func TestMain(m *testing.M) { m.Run(); fmt.Println("found a leak"); os.Exit(1) }
func TestLeaks(t *testing.T) {}
`,
	"untested/untested.go": "package untested\n",
}

func collect(t *testing.T, r io.Reader) (*totals, string) {
	t.Helper()
	total, out := newTotals(), new(bytes.Buffer)
	c := newCollector(out, total, provide.Local, "somewhere", "the log")
	require.NoError(t, c.read(r))
	c.nameRunning(0)
	return total, out.String()
}

func TestCollectorReadsWhatGoTestWrites(t *testing.T) {
	dir := t.TempDir()
	for name, content := range module {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	}
	cmd := exec.Command("go", "test", "-json", "-count=1", "-vet=off", "./...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	written, err := cmd.Output()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)

	total, out := collect(t, bytes.NewReader(written))
	require.Equal(t, 6, total.passed, "TestGood with a and b, TestBad/fine, TestFine, TestLeaks\n%s", out)
	require.Equal(t, 5, total.failed, "TestBad and TestBad/wrong, TestDies, the build of broken, TestMain of leaks\n%s", out)
	require.Equal(t, 1, total.skipped)
	require.Len(t, total.leftOut, 1)
	require.Contains(t, total.leftOut[0], "example.org/m/good TestSkipped on somewhere: ")
	require.Contains(t, total.leftOut[0], "left out: needs the moon")
	require.Len(t, total.failedPackages, 4)
	for _, want := range []string{
		"ok  \texample.org/m/good", "printed", "expected this", "--- FAIL: TestBad/wrong", "--- FAIL: TestBad", "FAIL\texample.org/m/bad",
		"last words", "on stderr", "--- FAIL: TestDies (did not end)", "FAIL\texample.org/m/panics",
		"undefined: undefined", "FAIL\texample.org/m/broken [build failed]", "found a leak", "FAIL\texample.org/m/leaks",
	} {
		require.Contains(t, out, want)
	}
	for _, noise := range []string{"good says nothing", "nor does", "unseen", "TestFine", "untested", "=== RUN", `"Action"`} {
		require.NotContains(t, out, noise)
	}
}

func TestCollectorCutsWhatIsVeryLong(t *testing.T) {
	var events strings.Builder
	for range 10 * shownLines {
		events.WriteString(`{"Action":"output","Package":"p","Test":"TestX","Output":"goroutine\n"}` + "\n")
	}
	events.WriteString(`{"Action":"fail","Package":"p","Test":"TestX"}` + "\n")
	_, out := collect(t, strings.NewReader(events.String()))
	require.Equal(t, shownLines+1, strings.Count(out, "\n"))
	require.Contains(t, out, "lines more, see the log")
}

func TestCollectorPassesOnWhatIsNoEvent(t *testing.T) {
	total, out := collect(t, strings.NewReader("no JSON\n{\"Action\":\"start\",\"Package\":\"p\"}\nno newline"))
	require.Equal(t, "no JSON\nno newline", out)
	require.Zero(t, total.passed+total.failed)
}

func TestCollectorNamesWhatRuns(t *testing.T) {
	var events strings.Builder
	for _, e := range []string{"run TestA", "pause TestA", "run TestB", "run TestB/x", "pass TestB/x", "pass TestB", "cont TestA",
		"run TestA/y", "pause TestA/y", "run TestC", "pause TestC", "run TestD"} {
		action, name, _ := strings.Cut(e, " ")
		fmt.Fprintf(&events, `{"Action":"%s","Package":"p","Test":"%s"}`+"\n", action, name)
	}
	_, out := collect(t, strings.NewReader(events.String()))
	require.Equal(t, "running for 0 s: p TestA\nrunning for 0 s: p TestD\n", out)
}

// A test that needs containers counts as left out unless the pass on containers has run it.
func TestCollectorLooksForWhatIsLeftToContainers(t *testing.T) {
	const skipped = `{"Action":"output","Package":"p","Test":"TestX","Output":"    x_test.go:1: ` + provide.LeftToContainers + `three nodes\n"}
{"Action":"skip","Package":"p","Test":"TestX"}
`
	for _, tt := range []struct {
		name   string
		second string // what the pass on containers says; "" when there is none
		left   int
	}{
		{"no second pass", "", 1},
		{"passed there", `{"Action":"pass","Package":"p","Test":"TestX"}`, 0},
		{"failed there", `{"Action":"fail","Package":"p","Test":"TestX"}`, 0},
		{"another one ran there", `{"Action":"pass","Package":"q","Test":"TestX"}`, 1},
		{"broken off there", `{"Action":"run","Package":"p","Test":"TestX"}`, 1},
		{"skipped there, too", skipped, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			total := newTotals()
			require.NoError(t, newCollector(io.Discard, total, provide.Local, "here", "the log").read(strings.NewReader(skipped)))
			require.Zero(t, total.skipped)
			require.NoError(t, newCollector(io.Discard, total, provide.Container, "there", "the log").read(strings.NewReader(tt.second)))
			total.settle()
			require.Len(t, total.leftOut, tt.left)
			require.Equal(t, tt.left, total.skipped)
			for _, line := range total.leftOut {
				require.Contains(t, line, "p TestX on ")
				require.Contains(t, line, "three nodes")
			}
		})
	}
}

// Nothing that is written may tell a secret, whatever became of the test.
func TestCollectorLooksForSecrets(t *testing.T) {
	for name, tt := range map[string]struct {
		event event
		tells bool
	}{
		"log of a passed test": {event{Action: "output", Package: "p", Test: "TestX", Output: "dial amqp://u:" + secret.New() + "@h"}, true},
		"of no test":           {event{Action: "output", Package: "p", Output: "pw=" + secret.New()}, true},
		"password of a broker": {event{Action: "output", Package: "p", Test: "TestX", Output: "their-password"}, true},
		"no event":             {event{Action: "other", Output: secret.New()}, true},
		"nothing":              {event{Action: "output", Package: "p", Test: "TestX", Output: "amqp://u:xxxxx@h"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			total := newTotals()
			c := newCollector(io.Discard, total, provide.Local, "somewhere", "the log")
			require.True(t, c.secrets.Watch("amqp://u:their-password@h/"))
			c.take(tt.event)
			c.take(tt.event)
			if !tt.tells {
				require.Empty(t, total.problems)
				return
			}
			require.Len(t, total.problems, 1)
			require.Contains(t, total.problems[0], "a secret in the output of "+tt.event.Package)
			require.NotContains(t, total.problems[0], "their-password")
			require.NotContains(t, total.problems[0], secret.Mark)
			require.Equal(t, 1, total.summary(io.Discard, false))
		})
	}
}
