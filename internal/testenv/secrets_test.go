package testenv_test

import (
	"bytes"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// A line with a secret is passed on like any other and makes the binary fail, however it gets into the line.
func TestLoggersTellOfSecrets(t *testing.T) {
	for name, log := range map[string]func(l *slog.Logger, secret string){
		"message":    func(l *slog.Logger, secret string) { l.Debug("using " + secret) },
		"attribute":  func(l *slog.Logger, secret string) { l.Info("dialing", "url", "amqp://u:"+secret+"@h") },
		"of logger":  func(l *slog.Logger, secret string) { l.With("token", secret).Info("hello") },
		"in a group": func(l *slog.Logger, secret string) { l.WithGroup("g").Info("hello", slog.Group("h", "token", secret)) },
	} {
		t.Run(name, func(t *testing.T) {
			var text, handled bytes.Buffer
			for _, l := range []*slog.Logger{testenv.Logger(&text), testenv.LoggerTo(slog.NewTextHandler(&handled, nil))} {
				secret := testenv.Secret()
				log(l, secret)
				l.Info("nothing to see")
				leaks := testenv.TakeLeaks()
				require.Len(t, leaks, 1)
				require.NotContains(t, leaks[0], secret)
			}
			require.Contains(t, text.String(), "nothing to see")
			require.Contains(t, handled.String(), "nothing to see")
			require.NotContains(t, handled.String(), "using", "below its level")
		})
	}
}

// The password that an account really has is one that is found.
func TestPasswordsCanBeFound(t *testing.T) {
	b := testenv.Shared(t)
	testenv.NeedsNode(t, b)
	url := b.AddUser(t, testenv.Name(t, "user"), "pass")
	testenv.Logger(new(bytes.Buffer)).Info(url)
	testenv.Logger(new(bytes.Buffer)).Info(b.URL())
	require.Len(t, testenv.TakeLeaks(), 2)
}

// A test with a logger of its own making would log where nobody looks for secrets.
func TestTestsLogWhereSecretsAreLookedFor(t *testing.T) {
	maker := regexp.MustCompile(`slog\.(New\(|DiscardHandler|SetDefault)`)
	root := filepath.Join("..", "..")
	seen := 0
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, filepath.Join(root, "internal", "testenv")) {
			return err
		}
		source, err := os.ReadFile(path)
		seen++
		require.False(t, maker.Match(source), "%s: take testenv.Logger or testenv.LoggerTo", path)
		return err
	}))
	require.Greater(t, seen, 50)
}
