// Command suite runs the project's tests on every broker that is to be had: on the machine's own RabbitMQ and on
// RabbitMQ 4 in a container, or, where AMQP_URL is set, on the broker it names alone. It starts one broker and one
// database for each of these passes and hands their addresses down to go test.
//
//	suite test  [go test's arguments]   everything, with the race detector, in random order
//	suite chaos [go test's arguments]   the long form of the tests named Chaos, with the race detector
//	suite bench [go test's arguments]   the benchmarks, without it
//
// It prints failures as they come and at the end what ran where, what was left out and why, and the slowest tests. It
// exits with a status other than 0 when a test failed, when none ran, when a secret is found in the output, and, with CI=true or WARREN_REQUIRE_ALL=1, when
// anything was left out; a test that needs containers counts as left out unless it ran in the pass on those. An interrupt stops the tests, the broker and the database.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/warrenmq/warren/internal/testenv/provide"
)

// startTime bounds the start of a broker and a database, with a first build of the container helper.
const startTime = 5 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	code := run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string) int {
	if len(args) == 0 {
		args = []string{"test"}
	}
	j, ok := jobs[args[0]]
	if !ok {
		fmt.Fprintf(os.Stderr, "suite: %s: want test, chaos or bench\n", args[0])
		return 2
	}
	s := &suite{job: j, args: args[1:], total: newTotals()}
	s.compile(ctx)
	passes, left := plan(os.Getenv, j.onlyOne, func() error { return haveContainers(ctx) })
	s.passes = passes
	s.total.leftOut = append(s.total.leftOut, left...)
	for _, kind := range passes {
		if ctx.Err() == nil {
			s.pass(ctx, kind)
		}
	}
	if ctx.Err() != nil {
		s.total.fail("interrupted")
	}
	return s.total.summary(os.Stdout, requireAll(os.Getenv))
}

// suite is one call of this program.
type suite struct {
	job    job
	args   []string
	passes []provide.Kind
	total  *totals
}

// pass runs the tests on one broker.
func (s *suite) pass(ctx context.Context, kind provide.Kind) {
	started := time.Now()
	startCtx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	env, err := provide.Start(startCtx, kind)
	if err != nil {
		s.total.fail(fmt.Sprintf("no servers of kind %q: %v\nRun `make setup`, which provides what is missing.", kind, err))
		return
	}
	where := fmt.Sprintf("RabbitMQ %s (%s)", env.Version, env.Kind)
	command := s.job.command(s.args)
	fmt.Printf("\n== %s, started in %.1f s: go %s\n", where, time.Since(started).Seconds(), join(command))
	begun := time.Now()
	err = s.goTest(ctx, command, env, where)
	s.total.ranOn = append(s.total.ranOn, fmt.Sprintf("%s in %.0f s", where, time.Since(begun).Seconds()))
	if err := errors.Join(err, env.Stop()); err != nil {
		s.total.fail(fmt.Sprintf("%s: %v", where, err))
	}
}
