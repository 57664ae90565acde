package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// job is what go test is asked to do.
type job struct {
	flags   []string // of go test, before those of the command line
	environ []string // for the tests
	race    bool
	onlyOne bool // on one broker only: a second would say nothing more
	plain   bool // go test's own output, passed on as it comes
	alone   bool // it measures: nothing else may run beside it
}

var jobs = map[string]job{
	"test":  {race: true, flags: []string{"-timeout=10m"}},
	"chaos": {race: true, alone: true, flags: []string{"-timeout=60m", "-run=Chaos"}, environ: []string{"WARREN_CHAOS=1"}},
	"bench": {plain: true, onlyOne: true, alone: true, flags: []string{"-timeout=60m", "-run=^$", "-bench=.", "-benchmem"}},
}

// parallel is how many packages are tested at a time. Two where there are cores for it, since tests wait for most of their time: with
// one package on two cores a third of them was busy.
func (j job) parallel() int {
	if j.alone {
		return 1
	}
	return min(2, runtime.NumCPU())
}

// command returns go's arguments. What the command line says comes last and so wins.
func (j job) command(args []string) []string {
	// vet is part of make lint.
	command := []string{"test", "-count=1", "-vet=off", "-p=" + strconv.Itoa(j.parallel())}
	if j.race {
		command = append(command, "-race", "-shuffle=on")
	}
	if !j.plain {
		command = append(command, "-json")
	}
	command = append(command, j.flags...)
	command = append(command, args...)
	if !slices.ContainsFunc(args, isPackage) {
		command = append(command, "./...")
	}
	return command
}

// isPackage tells a package from a flag and from a flag's value.
func isPackage(arg string) bool {
	return strings.HasPrefix(arg, ".") || strings.HasPrefix(arg, "github.com/") || strings.HasPrefix(arg, "/")
}

// compile compiles everything on all cores, which go test, told to test few packages at a time, would do on as few.
// It only saves time: what does not compile go test says later.
func (s *suite) compile(ctx context.Context) {
	args := []string{"list", "-buildvcs=false", "-test", "-export"}
	if s.job.race {
		args = append(args, "-race")
	}
	packages := slices.DeleteFunc(slices.Clone(s.args), func(arg string) bool { return !isPackage(arg) })
	if len(packages) == 0 {
		packages = []string{"./..."}
	}
	started := time.Now()
	cmd := exec.CommandContext(ctx, "go", append(args, packages...)...)
	cmd.Env = s.environ(nil)
	cmd.WaitDelay = 10 * time.Second
	_ = cmd.Run()
	if took := time.Since(started); took > 10*time.Second {
		fmt.Printf("compiled in %.0f s\n", took.Seconds())
	}
}

// environ returns the environment of the tests.
func (s *suite) environ(servers []string) []string {
	environ := append(slices.Clone(s.job.environ), os.Environ()...) // what is set from outside wins
	if s.job.race {
		environ = append(environ, "CGO_ENABLED=1") // the race detector needs it
	}
	if requireAll(os.Getenv) {
		environ = append(environ, "WARREN_REQUIRE_ALL=1")
	}
	return append(environ, servers...)
}

func join(args []string) string { return strings.Join(args, " ") }
