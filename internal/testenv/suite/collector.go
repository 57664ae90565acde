package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/warrenmq/warren/internal/testenv/provide"
	"github.com/warrenmq/warren/internal/testenv/secret"
)

// shownLines bounds what is printed of one failed test: a panic that dumps a thousand goroutines is in the log.
const shownLines = 400

// long is how long a test runs before it is named while it does.
const long = time.Minute

// event is a line of `go test -json`, see `go doc cmd/test2json`; the build's own actions carry ImportPath.
type event struct {
	Action     string
	Package    string
	ImportPath string
	Test       string
	Elapsed    float64
	Output     string
}

// collector takes in one go test: it prints failures with their output and a line for each package.
type collector struct {
	mu       sync.Mutex // guards all that follows
	out      io.Writer
	total    *totals
	where    string // the broker
	kind     provide.Kind
	logName  string
	packages map[string]*pkg
	builds   map[string][]string // output of go build, by import path
	secrets  secret.Finder
	telling  map[string]bool // packages of whose output one line that tells a secret has been reported
}

// pkg is a package under test.
type pkg struct {
	lines  []string         // its output outside of any test
	tests  map[string]*test // top-level tests that have not ended
	failed int              // tests, with their subtests
	ran    bool
}

// test is a top-level test with what it and its subtests wrote, less what passed subtests wrote.
type test struct {
	lines []line
	since time.Time // of its start, or of its end of waiting for other parallel tests
	waits bool      // for other tests
}

// line is a line of output; test is the test or subtest that wrote it.
type line struct{ test, text string }

func newCollector(out io.Writer, total *totals, kind provide.Kind, where, logName string) *collector {
	return &collector{
		out: out, total: total, kind: kind, where: where, logName: logName,
		packages: make(map[string]*pkg), builds: make(map[string][]string), telling: make(map[string]bool),
	}
}

// read takes in events until there are no more. What is no event is passed on as it is.
func (c *collector) read(r io.Reader) error {
	lines := bufio.NewReader(r)
	for {
		text, err := lines.ReadString('\n')
		if text != "" {
			var e event
			if json.Unmarshal([]byte(text), &e) != nil {
				e = event{Action: "other", Output: text}
			}
			c.take(e)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (c *collector) take(e event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lookForSecrets(e)
	switch {
	case e.Action == "other":
		fmt.Fprint(c.out, e.Output)
	case e.Action == "build-output":
		c.builds[e.ImportPath] = append(c.builds[e.ImportPath], e.Output)
	case e.Action == "build-fail":
		fmt.Fprint(c.out, strings.Join(c.builds[e.ImportPath], ""))
	case e.Package == "":
	case e.Test == "":
		c.takePackage(c.pkg(e.Package), e)
	default:
		c.takeTest(c.pkg(e.Package), e)
	}
}

// lookForSecrets fails the run when anything that tests, passed ones too, or what they start wrote tells a secret. It
// names one line of each package.
func (c *collector) lookForSecrets(e event) {
	redacted, found := c.secrets.Find([]byte(e.Output))
	if found && !c.telling[e.Package] {
		c.telling[e.Package] = true
		c.total.fail(fmt.Sprintf("a secret in the output of %s %s on %s: %s", e.Package, e.Test, c.where, strings.TrimSpace(redacted)))
	}
}

func (c *collector) pkg(path string) *pkg {
	p := c.packages[path]
	if p == nil {
		p = &pkg{tests: make(map[string]*test)}
		c.packages[path] = p
	}
	return p
}

// takePackage takes in what concerns a package as a whole.
func (c *collector) takePackage(p *pkg, e event) {
	switch e.Action {
	case "output":
		p.lines = append(p.lines, e.Output)
	case "pass":
		if p.ran {
			c.print(p.lines, func(s string) bool { return strings.HasPrefix(s, "ok ") })
		}
		delete(c.packages, e.Package)
		c.total.timed(c.where, e)
	case "fail":
		c.total.timed(c.where, e)
		c.abort(p)
		if p.failed == 0 {
			c.total.failed++ // the build, TestMain, or goroutines left over
		}
		c.print(p.lines, func(s string) bool { return s != "PASS\n" && s != "FAIL\n" })
		delete(c.packages, e.Package)
		c.total.failedPackages = append(c.total.failedPackages, fmt.Sprintf("%s on %s", e.Package, c.where))
	case "skip": // no test files
		delete(c.packages, e.Package)
	}
}

// abort counts as failed, and prints, the tests of p that did not come to their end.
func (c *collector) abort(p *pkg) {
	for _, name := range slices.Sorted(maps.Keys(p.tests)) {
		p.failed++
		c.total.failed++
		t := p.tests[name]
		t.lines = append(t.lines, line{name, fmt.Sprintf("--- FAIL: %s (did not end)\n", name)})
		c.printTest(t)
	}
	clear(p.tests)
}

// takeTest takes in what concerns a test or a subtest.
func (c *collector) takeTest(p *pkg, e event) {
	p.ran = true
	top, _, isSubtest := strings.Cut(e.Test, "/")
	t := p.tests[top]
	if t == nil {
		t = &test{since: time.Now()}
		p.tests[top] = t
	}
	if !isSubtest && (e.Action == "pause" || e.Action == "cont") {
		t.waits, t.since = e.Action == "pause", time.Now()
	}
	switch e.Action {
	case "output":
		if !strings.HasPrefix(e.Output, "=== ") {
			t.lines = append(t.lines, line{e.Test, e.Output})
		}
		return
	case "pass":
		c.total.passed++
		t.drop(e.Test)
	case "fail":
		c.total.failed++
		p.failed++
	case "skip":
		c.skipped(e, t.reason(e.Test))
		t.drop(e.Test)
	default:
		return
	}
	if e.Action != "skip" && c.kind == provide.Container {
		c.total.ranOnContainers[testName{e.Package, e.Test}] = true
	}
	if isSubtest {
		return
	}
	if e.Action == "fail" {
		c.printTest(t)
	}
	delete(p.tests, top)
	c.total.timed(c.where, e)
}

// skipped takes in a skipped test. One that is left to the pass on containers counts only if it does not run there.
func (c *collector) skipped(e event, reason string) {
	line := fmt.Sprintf("%s %s on %s: %s", e.Package, e.Test, c.where, reason)
	if strings.Contains(reason, provide.LeftToContainers) && c.kind != provide.Container {
		c.total.leftToContainers[testName{e.Package, e.Test}] = line
		return
	}
	c.total.skipped++
	c.total.leftOut = append(c.total.leftOut, line)
}

// drop forgets what a test wrote.
func (t *test) drop(name string) {
	t.lines = slices.DeleteFunc(t.lines, func(l line) bool { return l.test == name })
}

// reason returns what a skipped test said last: why it is.
func (t *test) reason(name string) string {
	reason := "no reason given"
	for _, l := range t.lines {
		if text := strings.TrimSpace(l.text); l.test == name && !strings.HasPrefix(text, "--- ") {
			reason = text
		}
	}
	return reason
}

// printTest prints what a test wrote, of very much only the beginning and the end.
func (c *collector) printTest(t *test) {
	lines := make([]string, len(t.lines))
	for i, l := range t.lines {
		lines[i] = l.text
	}
	if cut := len(lines) - shownLines; cut > 0 {
		note := fmt.Sprintf("    ... %d lines more, see %s ...\n", cut, c.logName)
		lines = slices.Concat(lines[:shownLines/2], []string{note}, lines[len(lines)-shownLines/2:])
	}
	c.print(lines, func(string) bool { return true })
}

// print writes those lines that are wanted.
func (c *collector) print(lines []string, want func(string) bool) {
	for _, l := range lines {
		if want(l) {
			fmt.Fprint(c.out, l)
		}
	}
}

// watch names now and then the tests that take long, until done is closed.
func (c *collector) watch(done <-chan struct{}) {
	tick := time.NewTicker(long / 2)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
			c.nameRunning(long)
		}
	}
}

// nameRunning names the tests that have been running for longer than given.
func (c *collector) nameRunning(longer time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, path := range slices.Sorted(maps.Keys(c.packages)) {
		tests := c.packages[path].tests
		for _, name := range slices.Sorted(maps.Keys(tests)) {
			if t := tests[name]; !t.waits && time.Since(t.since) > longer {
				fmt.Fprintf(c.out, "running for %.0f s: %s %s\n", time.Since(t.since).Seconds(), path, name)
			}
		}
	}
}

// seconds is how long a test or a package took.
func (e event) seconds() time.Duration { return time.Duration(e.Elapsed * float64(time.Second)) }
