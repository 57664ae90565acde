package deps

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// logCalls are the methods of a *slog.Logger, with the number of arguments before the first key.
var logCalls = map[string]int{"With": 0, "Debug": 1, "Info": 1, "Warn": 1, "Error": 1, "Log": 3}

var (
	aLogger = regexp.MustCompile(`(?i)log(ger)?$`)
	logKey  = regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|")
)

// silent are the folders in which nothing is logged for a user of the module.
var silent = []string{"examples", "tools", "internal/testenv", "internal/telemetry"}

// TestLogKeys: whoever searches logs, or alerts on them, can rely on the keys: each is a literal, and on the page that says
// what it stands for.
func TestLogKeys(t *testing.T) {
	known := map[string]bool{}
	_, keys, found := strings.Cut(readFile(t, "docs/telemetry.md"), "\n## Logs\n")
	require.True(t, found)
	keys, _, _ = strings.Cut(keys, "\n## ")
	for _, m := range logKey.FindAllStringSubmatch(keys, -1) {
		known[m[1]] = true
	}
	require.NotEmpty(t, known)
	files := token.NewFileSet()
	require.NoError(t, filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		switch rel, _ := filepath.Rel(root, path); {
		case err != nil:
			return err
		case entry.IsDir() && (slices.Contains(silent, filepath.ToSlash(rel)) || strings.HasPrefix(entry.Name(), ".") && rel != "."):
			return filepath.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			for _, key := range keysOf(n) {
				if name, literal := text(key); !literal {
					t.Errorf("%s: a key that is not a literal", files.Position(key.Pos()))
				} else if !known[name] {
					t.Errorf("%s: %q is not among the keys in docs/telemetry.md", files.Position(key.Pos()), name)
				}
			}
			return true
		})
		return nil
	}))
}

// keysOf returns the keys in a call of a logger, or in a slice named attrs that is made for one.
func keysOf(n ast.Node) (keys []ast.Expr) {
	every := func(args []ast.Expr, from int) {
		for i := from; i < len(args); i += 2 {
			keys = append(keys, args[i])
		}
	}
	switch n := n.(type) {
	case *ast.CallExpr:
		if fun, ok := n.Fun.(*ast.SelectorExpr); ok && !n.Ellipsis.IsValid() {
			if from, is := logCalls[fun.Sel.Name]; is && aLogger.MatchString(last(fun.X)) {
				every(n.Args, from)
			}
		}
		if fun, ok := n.Fun.(*ast.Ident); ok && fun.Name == "append" && last(n.Args[0]) == "attrs" && !n.Ellipsis.IsValid() {
			every(n.Args, 1)
		}
	case *ast.AssignStmt:
		if lit, ok := n.Rhs[0].(*ast.CompositeLit); ok && last(n.Lhs[0]) == "attrs" {
			if of, ok := lit.Type.(*ast.ArrayType); ok && last(of.Elt) == "any" {
				every(lit.Elts, 0)
			}
		}
	}
	return keys
}

// last is the last name in an expression.
func last(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

func text(e ast.Expr) (s string, literal bool) {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	s, err := strconv.Unquote(lit.Value)
	return s, err == nil
}
