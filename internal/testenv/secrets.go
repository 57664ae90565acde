package testenv

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"

	"github.com/warrenmq/warren/internal/testenv/secret"
)

// watching is how the log lines of this binary's tests are looked at, and which of them told a secret.
var watching struct {
	sync.Mutex
	secret.Finder
	leaks []string
}

// Secret returns a password, token or the like that nobody else has. Main fails a binary that logs it, and the suite's
// runner one that prints it, as they do with every other secret of the tests: see package secret.
func Secret() string { return secret.New() }

// ofThisRun is the end of findable passwords.
var ofThisRun = "-" + secret.New()

// findable returns a password that is found wherever it is written.
func findable(password string) string {
	if strings.Contains(password, secret.Mark) {
		return password
	}
	return password + ofThisRun
}

// Logger returns a logger of all levels that writes text to w. Main fails the binary when a line tells a secret, so all
// tests log with this one or with LoggerTo; what has no logger of its own prints to where the suite looks.
func Logger(w io.Writer) *slog.Logger { return slog.New(textTo(w)) }

// LoggerTo returns a logger that hands its records to h and otherwise is like Logger.
func LoggerTo(h slog.Handler) *slog.Logger { return slog.New(both{textTo(io.Discard), h}) }

func textTo(w io.Writer) slog.Handler {
	return slog.NewTextHandler(watchful{w}, &slog.HandlerOptions{Level: slog.LevelDebug})
}

// watchful looks for secrets in the lines written to it.
type watchful struct{ io.Writer }

func (w watchful) Write(line []byte) (int, error) {
	watching.Lock()
	if redacted, found := watching.Find(line); found {
		watching.leaks = append(watching.leaks, fmt.Sprintf("a secret in the log: %s", bytes.TrimSpace([]byte(redacted))))
	}
	watching.Unlock()
	return w.Writer.Write(line)
}

// watch adds the password of a broker that others run.
func watch(rawURL string) {
	watching.Lock()
	defer watching.Unlock()
	watching.Watch(rawURL)
}

// leaks returns what was found.
func leaks() []string {
	watching.Lock()
	defer watching.Unlock()
	return watching.leaks
}

// both hands every record to the first handler and, of its levels, to the second.
type both struct{ watch, then slog.Handler }

func (b both) Enabled(ctx context.Context, level slog.Level) bool { return b.watch.Enabled(ctx, level) }

func (b both) Handle(ctx context.Context, r slog.Record) error {
	_ = b.watch.Handle(ctx, r.Clone()) // to nowhere
	if !b.then.Enabled(ctx, r.Level) {
		return nil
	}
	return b.then.Handle(ctx, r)
}

func (b both) WithAttrs(attrs []slog.Attr) slog.Handler {
	return both{b.watch.WithAttrs(attrs), b.then.WithAttrs(attrs)}
}

func (b both) WithGroup(name string) slog.Handler {
	return both{b.watch.WithGroup(name), b.then.WithGroup(name)}
}
