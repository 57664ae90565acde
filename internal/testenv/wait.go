package testenv

import (
	"fmt"
	"testing"
	"time"
)

// Eventually polls cond until it is true and fails the test, with msg and args formatted, when it is not within the
// given time. It calls cond from the test's own goroutine, every 5 to 50 ms and once more at the end.
func Eventually(tb testing.TB, within time.Duration, cond func() bool, msg string, args ...any) {
	tb.Helper()
	deadline := time.Now().Add(within)
	pause := 5 * time.Millisecond
	for !cond() {
		left := time.Until(deadline)
		if left <= 0 {
			tb.Fatalf("not within %v: %s", within, fmt.Sprintf(msg, args...))
		}
		time.Sleep(min(pause, left))
		pause = min(2*pause, 50*time.Millisecond)
	}
}
