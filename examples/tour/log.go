package main

import (
	"log/slog"
	"slices"
	"strings"
	"time"
)

// showLog lets the library's log lines into the narration, or keeps them out where they would only repeat it.
func (t *tour) showLog(show bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.logging = show
}

// logger returns the logger for a chapter's connections. It quotes what it is given, so that nothing out of a message
// reaches the terminal as it is.
func (t *tour) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(logWriter{t}, &slog.HandlerOptions{ReplaceAttr: shorten}))
}

// shorten leaves out what is the same in every line of the tour, and makes the rest easier to read.
func shorten(groups []string, a slog.Attr) slog.Attr {
	switch {
	case len(groups) == 0 && slices.Contains([]string{slog.TimeKey, slog.LevelKey, "connection", "queue", "name", "message"}, a.Key):
		return slog.Attr{}
	case a.Value.Kind() == slog.KindDuration:
		a.Value = slog.DurationValue(a.Value.Duration().Round(time.Millisecond))
	case a.Value.Kind() != slog.KindTime:
		a.Value = slog.StringValue(strings.ReplaceAll(a.Value.String(), `"`, "'"))
	}
	return a
}

type logWriter struct{ t *tour }

func (w logWriter) Write(line []byte) (int, error) {
	w.t.mu.Lock()
	show := w.t.logging
	w.t.mu.Unlock()
	if show {
		w.t.print("   log: %s", line)
	}
	return len(line), nil
}
