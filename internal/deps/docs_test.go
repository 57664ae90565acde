package deps

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	testName   = regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark|Example)[A-Z]\w*`)
	factNumber = regexp.MustCompile(`\bF[0-9]+\b`)
	relative   = regexp.MustCompile(`\]\(([^)#:]+)\)`)
)

// TestDocsNameWhatExists: every test that a page of docs/ rests on is in the suite, every fact is on the page of facts, and
// every link leads to a file.
func TestDocsNameWhatExists(t *testing.T) {
	suite := allTests(t)
	facts := readFile(t, "docs/facts.md")
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	require.NoError(t, err)
	require.NotEmpty(t, pages)
	for _, page := range pages {
		content, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, name := range testName.FindAllString(string(content), -1) {
			require.True(t, strings.Contains(suite, "func "+name+"("), "%s rests on %s, which is no test", filepath.Base(page), name)
		}
		for _, fact := range factNumber.FindAllString(string(content), -1) {
			require.True(t, strings.Contains(facts, "| "+fact+" |"), "%s rests on %s, which is not on the page of facts", filepath.Base(page), fact)
		}
		for _, link := range relative.FindAllStringSubmatch(string(content), -1) {
			require.FileExists(t, filepath.Join(filepath.Dir(page), link[1]))
		}
	}
}

// allTests is the text of every test file.
func allTests(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	require.NoError(t, filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		content, err := os.ReadFile(path)
		all.Write(content)
		return err
	}))
	return all.String()
}
