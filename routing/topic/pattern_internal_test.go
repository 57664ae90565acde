package topic

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheckPattern(t *testing.T) {
	for _, pattern := range []string{"#", "*", "a", "a.b.c", "order.#", "*.*.eu", "#.a.#", "a.*.#", "ünïcode.*", "a b.-_/", "#.#"} {
		require.NoError(t, checkPattern(pattern), pattern)
	}
	for pattern, fault := range map[string]string{
		"":          "word 1 is empty",
		".":         "word 2 is empty",
		"a..b":      "word 2 is empty",
		"a.":        "word 2 is empty",
		"order*":    `word 1, "order*"`,
		"a.b#.c":    `word 2, "b#"`,
		"**":        `word 1, "**"`,
		"##":        `word 1, "##"`,
		"#.a.#.b.#": "3 times #, at most 2",
	} {
		require.ErrorContains(t, checkPattern(pattern), fault, pattern)
	}
}

func TestMatch(t *testing.T) {
	for _, tt := range []struct {
		pattern string
		yes, no []string
	}{
		{"order.#", []string{"order", "order.created", "order.cancelled.eu"}, []string{"", "orders.created", "x.order", "Order.created"}},
		{"*.*.eu", []string{"order.cancelled.eu", "..eu", "a..eu"}, []string{"order.eu", "order.cancelled.us", "a.b.c.eu"}},
		{"payment.failed.#", []string{"payment.failed", "payment.failed.eu.x"}, []string{"order.cancelled.eu", "payment", "payment.failedx"}},
		{"#", []string{"", "a", ".", "a.b.c"}, nil},
		{"*", []string{"a", "*", "#"}, []string{"", "a.b", "."}},
		{"", []string{""}, []string{"a", ".", "#"}},
		{"#.#", []string{"", "a", "a.b"}, nil},
		{"*.#", []string{"a", "a.b", "."}, []string{""}},
		{"#.*", []string{"a", "a.b"}, []string{""}},
		{"#.a.#", []string{"a", "x.a", "a.x", "x.a.y", "a.a"}, []string{"", "x", "x.y", "xa"}},
		{"#.a.b", []string{"a.b", "a.a.b", "a.b.a.b"}, []string{"a.b.a", "b"}},
		{"a.#.b.#.c", []string{"a.b.c", "a.b.x.b.c", "a.x.b.y.c", "a.b.c.c"}, []string{"a.c.b", "a.b", "a.c"}},
		{"a..b", []string{"a..b"}, []string{"a.b", "a.x.b"}},
		{"a*", []string{"a*"}, []string{"a", "ab"}},
		{"a.*", []string{"a.b", "a."}, []string{"a", "a.b.c"}},
	} {
		for _, key := range tt.yes {
			require.True(t, Match(tt.pattern, key), "%q matches %q", tt.pattern, key)
		}
		for _, key := range tt.no {
			require.False(t, Match(tt.pattern, key), "%q does not match %q", tt.pattern, key)
		}
	}
	require.Zero(t, testing.AllocsPerRun(100, func() { Match("#.a.#.b", "a.b.c.d.a.b") }))
}

// byTable is what Match computes, the slow and plain way: whether the first i words of the pattern match the first j of the
// key, for all i and j.
func byTable(pattern, key string) bool {
	p, k := split(pattern), split(key)
	table := make([][]bool, len(p)+1)
	for i := range table {
		table[i] = make([]bool, len(k)+1)
		for j := range table[i] {
			switch {
			case i == 0:
				table[i][j] = j == 0
			case p[i-1] == "#":
				table[i][j] = table[i-1][j] || j > 0 && table[i][j-1]
			default:
				table[i][j] = j > 0 && table[i-1][j-1] && (p[i-1] == "*" || p[i-1] == k[j-1])
			}
		}
	}
	return table[len(p)][len(k)]
}

func split(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ".")
}

// random is a pattern or key of few different words, so that many pairs match.
func random(r *rand.Rand, words []string, most int) string {
	out := make([]string, r.IntN(most+1))
	for i := range out {
		out[i] = words[r.IntN(len(words))]
	}
	return strings.Join(out, ".")
}

func TestMatchAgreesWithTheTable(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	matched := 0
	const pairs = 50_000
	for range pairs {
		pattern := random(r, []string{"a", "b", "*", "#", "#", ""}, 7)
		key := random(r, []string{"a", "b", "", "*", "#"}, 8)
		want := byTable(pattern, key)
		if want {
			matched++
		}
		require.Equal(t, want, Match(pattern, key), "pattern %q, key %q", pattern, key)
	}
	require.Greater(t, matched, pairs/20)
}

// FuzzMatch compares with the table, which takes time in proportion to the product of the lengths; that Match does not
// take much longer shows in the fuzzing's own limit on the time of one input.
func FuzzMatch(f *testing.F) {
	f.Add("order.#", "order.created.eu")
	f.Add("#.a.#", "x.a.a.y")
	f.Add("", "")
	f.Add(strings.Repeat("#.a.", 60)+"b", strings.Repeat("a.", 120)+"a")
	f.Fuzz(func(t *testing.T, pattern, key string) {
		if len(pattern) > 2000 || len(key) > 2000 {
			return
		}
		require.Equal(t, byTable(pattern, key), Match(pattern, key))
	})
}

// The worst patterns there are, far above what a broker takes, cost no more than the product of the lengths.
func TestMatchIsPolynomial(t *testing.T) {
	key := strings.Repeat("a.", 20_000) + "a"
	require.False(t, Match(strings.Repeat("#.a.", 2_000)+"b", key)) // 2^n ways of trying
	require.True(t, Match(strings.Repeat("#.a.", 2_000)+"#", key))
	require.False(t, Match("#."+strings.Repeat("a.", 500)+"b", key))
}

func TestCompareIsAnOrder(t *testing.T) {
	sorted := []string{"order.created.eu", "order.created.*", "order.created.#", "order.*.eu", "order.*", "order", "order.#.eu", "order.#",
		"*.created", "*", "#.eu", "#.*", "#", "#.#"}
	for i, a := range sorted {
		for j, b := range sorted {
			require.Equal(t, sign(i-j), sign(compare(a, b)), "%q and %q", a, b)
		}
	}
}

func sign(n int) int { return max(-1, min(1, n)) }
