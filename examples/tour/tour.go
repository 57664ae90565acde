package main

import (
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/google/uuid"
)

// tour is what a chapter has to work with: a broker, a voice, and the account of what came out right.
type tour struct {
	url string
	id  string // of this tour, for names on a broker that others use too

	mu           sync.Mutex // of all below
	out          io.Writer
	right, wrong int
	logging      bool // log lines are shown
}

func newTour(out io.Writer, url string) *tour {
	return &tour{url: url, id: uuid.NewString()[:8], out: out}
}

// name returns a name for something on the broker, this tour's own.
func (t *tour) name(what string) string { return "tour." + t.id + "." + what }

// heading begins a chapter, step a part of one.
func (t *tour) heading(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	t.print("\n%s\n%s\n", text, strings.Repeat("=", len(text)))
}

func (t *tour) step(text string) { t.print("\n%s\n%s\n", text, strings.Repeat("-", len(text))) }

// say tells the reader something.
func (t *tour) say(format string, args ...any) { t.print(format+"\n", args...) }

// figure compares one that must come out exactly.
func (t *tour) figure(what string, got, want int) {
	t.compare(what, got == want, "%d (expected %d)", got, want)
}

// between compares one that depends on the moment.
func (t *tour) between(what string, got, low, high int) {
	t.compare(what, low <= got && got <= high, "%d (expected %d to %d)", got, low, high)
}

func (t *tour) compare(what string, ok bool, format string, args ...any) {
	t.mu.Lock()
	mark := "   ok   "
	if ok {
		t.right++
	} else {
		t.wrong++
		mark = "   WRONG"
	}
	t.mu.Unlock()
	t.print("%s  %-38s %s\n", mark, what, fmt.Sprintf(format, args...))
}

func (t *tour) print(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(t.out, format, args...)
}
