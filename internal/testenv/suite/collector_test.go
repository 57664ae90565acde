package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
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
	c := newCollector(out, total, "somewhere", "the log")
	require.NoError(t, c.read(r))
	c.end()
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
	total, out := collect(t, strings.NewReader("no JSON\n{\"Action\":\"run\",\"Package\":\"p\",\"Test\":\"TestX\"}\nno newline"))
	require.Equal(t, "no JSON\nno newlinep TestX was running\n", out)
	require.Zero(t, total.passed+total.failed)
}
