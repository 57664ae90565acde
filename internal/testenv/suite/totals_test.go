package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSummary(t *testing.T) {
	for _, tt := range []struct {
		name string
		t    totals
		all  bool
		code int
		last string
	}{
		{"all well", totals{passed: 3, ranOn: []string{"a broker"}}, true, 0, "3 passed, 0 failed, 0 skipped"},
		{"a test failed", totals{passed: 3, failed: 1}, false, 1, "3 passed, 1 failed, 0 skipped"},
		{"none ran", totals{}, false, 1, "0 passed, 0 failed, 0 skipped"},
		{"only skipped ones", totals{skipped: 2}, false, 1, "0 passed, 0 failed, 2 skipped"},
		{"something left out", totals{passed: 3, leftOut: []string{"x"}}, false, 0, "3 passed, 0 failed, 0 skipped"},
		{"something left out in CI", totals{passed: 3, leftOut: []string{"x"}}, true, 1, "3 passed, 0 failed, 0 skipped"},
		{"no broker", totals{passed: 3, problems: []string{"no broker"}}, false, 1, "3 passed, 0 failed, 0 skipped"},
		{"benchmarks", totals{plain: 1}, true, 0, "left out: nothing"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			require.Equal(t, tt.code, tt.t.summary(&out, tt.all))
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			require.Equal(t, tt.last, lines[len(lines)-1])
			require.Equal(t, tt.code != 0 && tt.t.failed == 0, strings.Contains(out.String(), "FAIL: "), out.String())
		})
	}
}

func TestSlowest(t *testing.T) {
	all := []timing{{"b", 2 * time.Second}, {"c", 90 * time.Second}, {"a", time.Second}}
	require.Equal(t, []string{" 90.00 s  c", "  2.00 s  b"}, slowest(all, 2, 0))
	require.Equal(t, []string{" 90.00 s  c"}, slowest(all, 10, packageBudget))
	require.Empty(t, slowest(nil, 10, 0))
}
