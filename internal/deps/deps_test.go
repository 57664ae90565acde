// Package deps tests what the project promises about what a user's program links, and about its own layout.
package deps

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	root   = "../.."
	module = "github.com/warrenmq/warren"
)

// golist runs go list in a folder and returns its lines.
func golist(t *testing.T, dir string, args ...string) []string {
	t.Helper()
	return strings.Fields(gocmd(t, dir, append([]string{"list"}, args...)...))
}

func gocmd(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "go %s: %s", strings.Join(args, " "), &stderr)
	return string(out)
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, name))
	require.NoError(t, err)
	return string(b)
}

// TestWorkqueueLinksNoStranger: a service that uses the work queue links no database driver, no test helper, no Docker
// client and no telemetry SDK.
func TestWorkqueueLinksNoStranger(t *testing.T) {
	linked := golist(t, root, "-mod=readonly", "-deps", "./workqueue")
	require.Contains(t, linked, module+"/reconnect")
	for _, path := range linked {
		for _, stranger := range []string{
			"github.com/jackc", "github.com/stretchr", "github.com/testcontainers", "github.com/docker", "github.com/moby",
			"go.opentelemetry.io/otel/sdk", "go.uber.org/goleak", "testing", module + "/internal/testenv",
		} {
			require.False(t, path == stranger || strings.HasPrefix(path, stranger+"/"), "workqueue links %s", path)
		}
	}
}

// TestModuleOfAUser builds the program of the README in a module of its own, as somebody who begins with warren would,
// and looks at what that brings along.
func TestModuleOfAUser(t *testing.T) {
	dir := t.TempDir()
	checkout, err := filepath.Abs(root)
	require.NoError(t, err)
	write := func(name, content string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	write("main.go", readmeProgram(t))
	write("go.mod", "module example.org/user\n\ngo 1.25.0\n\nrequire "+module+" v0.0.0\n\nreplace "+module+" => "+checkout+"\n")
	write("go.sum", readFile(t, "go.sum")) // so that nothing has to be asked over the network

	gocmd(t, dir, "vet", ".")
	linked := golist(t, dir, "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", ".")
	slices.Sort(linked)
	linked = slices.Compact(linked)
	t.Logf("modules linked, %d: %s", len(linked), strings.Join(linked, " "))
	require.LessOrEqual(t, len(linked), 12)

	graph := golist(t, dir, "-m", "-f", "{{.Path}}", "all")
	t.Logf("modules in the graph, %d: %s", len(graph), strings.Join(graph, " "))
	require.LessOrEqual(t, len(graph), maxGraph)
	for _, path := range graph {
		for _, stranger := range []string{"testcontainers", "docker", "moby", "honnef.co"} {
			require.NotContains(t, path, stranger)
		}
	}
	after, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	require.NoError(t, err)
	require.Contains(t, string(after), "\ngo 1.25.0\n", "the user's Go version was raised")
}

// maxGraph is how many modules may be in a user's graph, what this module's own tests need included. Seven of them are
// OpenTelemetry's API with what it links (otel, metric, trace; auto/sdk, logr, stdr, xxhash), two its SDK, which only tests
// import, half a dozen what those modules name for their own tests; pgx, for outbox and idempotency, brings six. Nothing of
// them is linked by who does not import what needs them (see above).
const maxGraph = 32

// readmeProgram returns the first program in the README.
func readmeProgram(t *testing.T) string {
	t.Helper()
	_, rest, found := strings.Cut(readFile(t, "README.md"), "\n```go\n")
	require.True(t, found, "no program in the README")
	program, _, found := strings.Cut(rest, "\n```\n")
	require.True(t, found)
	return program + "\n"
}

// TestGoVersion: whoever has Go 1.25 can use warren, whatever newer one a developer's go mod tidy ran with.
func TestGoVersion(t *testing.T) {
	gomod := readFile(t, "go.mod")
	require.Contains(t, gomod, "\ngo 1.25.0\n")
	require.NotContains(t, gomod, "\ntoolchain ")
	require.NotContains(t, gomod, "\nreplace ")
}

// TestLayout: imports point down only. A pattern imports reconnect and what is internal, never another pattern, and
// nothing but tests, examples and the test environment imports the test environment. What pubsub and the routing packages
// share is internal, and stands between them and reconnect, as does what every pattern does before its first publish.
func TestLayout(t *testing.T) {
	const testenv, examples, between, first = "internal/testenv", "examples", "internal/exchange", "internal/once"
	for _, line := range strings.Split(strings.TrimSpace(
		gocmd(t, root, "list", "-mod=readonly", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...")), "\n") {
		fields := strings.Fields(line)
		path := strings.TrimPrefix(fields[0], module+"/")
		for _, imported := range fields[1:] {
			imported, ours := strings.CutPrefix(imported, module+"/")
			switch {
			case !ours || under(path, examples) || under(path, testenv):
			case under(imported, testenv):
				t.Errorf("%s imports %s, which is for tests", path, imported)
			case (path == between || path == first) && imported == "reconnect":
			case imported == between && !under(path, "pubsub") && !under(path, "routing"):
				t.Errorf("%s imports %s, which is for pubsub and routing", path, imported)
			case under(path, "internal") && !under(imported, "internal"):
				t.Errorf("%s imports %s, which stands on it", path, imported)
			case !under(path, "internal") && !under(imported, "internal") && imported != "reconnect":
				t.Errorf("%s imports %s, another pattern", path, imported)
			}
		}
	}
}

func under(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// TestEveryPackageLooksForLeaks: the tests of each package end with a look at the goroutines left over.
func TestEveryPackageLooksForLeaks(t *testing.T) {
	for _, dir := range golist(t, root, "-mod=readonly", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}", "./...") {
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		require.NoError(t, err)
		require.True(t, slices.ContainsFunc(files, func(name string) bool {
			content, err := os.ReadFile(name)
			require.NoError(t, err)
			return bytes.Contains(content, []byte("goleak.VerifyTestMain(")) || bytes.Contains(content, []byte("testenv.Main("))
		}), "%s has no TestMain with goleak.VerifyTestMain or testenv.Main", dir)
	}
}
