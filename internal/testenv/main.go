package testenv

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Main runs the tests of a binary, for TestMain: it runs them, stops what they started, prints which tests were left
// out, and exits. Passing tests fail the binary all the same when goroutines are left over or a log line tells a secret.
func Main(m *testing.M) {
	code := m.Run()
	if err := stopAll(); err != nil {
		fmt.Fprintln(os.Stderr, "testenv: stop:", err)
		code = max(code, 1)
	}
	for _, leak := range leaks() {
		fmt.Println("testenv:", leak)
		code = max(code, 1)
	}
	printLeftOut()
	if code == 0 {
		if err := leftover(); err != nil {
			fmt.Fprintln(os.Stderr, "testenv:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// NoLeaks fails the test when goroutines are left over other than those that were there when it was called and those
// by which this package keeps brokers running. It checks when the test, and what it registered with Cleanup since,
// has ended; so call it first.
func NoLeaks(tb testing.TB) {
	tb.Helper()
	before := goleak.IgnoreCurrent()
	tb.Cleanup(func() {
		if err := leftover(append(keepers(), before)...); err != nil {
			tb.Error(err)
		}
	})
}

// leftover returns the goroutines that are left over, and not only about to end: goleak alone waits for half a second, in
// which the machine may do something else.
func leftover(options ...goleak.Option) (err error) {
	for end := time.Now().Add(5 * time.Second); ; {
		if err = goleak.Find(options...); err == nil || time.Now().After(end) {
			return err
		}
	}
}

// keepers are the goroutines that end only with the servers they keep.
func keepers() []goleak.Option {
	const provide = "github.com/warrenmq/warren/internal/testenv/provide."
	return []goleak.Option{
		goleak.IgnoreAnyFunction(provide + "(*process).run"),
		goleak.IgnoreAnyFunction(provide + "(*helper).read"),
	}
}
