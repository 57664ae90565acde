package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/google/uuid"
)

// tour is what a chapter has to work with: a broker, a voice, and the account of what came out right.
type tour struct {
	url  string
	node node   // nil where the broker is somebody else's
	id   string // of this tour, for names on a broker that others use too

	database string // an empty one of the tour's own; "" where there is none

	mu           sync.Mutex // of all below
	out          io.Writer
	right, wrong int
	logging      bool // log lines are shown
}

// node is a broker of the tour's own, to be broken as a whole.
type node interface {
	// Freeze stops it where it is, with its sockets open, and Thaw lets it go on.
	Freeze() error
	Thaw() error
	// Alarm raises or clears its memory alarm.
	Alarm(ctx context.Context, on bool) error
}

func newTour(out io.Writer, url string, own node) *tour {
	return &tour{url: url, node: own, id: uuid.NewString()[:8], out: out}
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

// leaveOut tells that a chapter is not told.
func (t *tour) leaveOut() {
	t.say("LEFT OUT: this chapter breaks a whole broker, and the one of AMQP_URL may have other users. Without AMQP_URL")
	t.say("the tour starts one of its own, and tells it.")
}

// figure compares one that must come out exactly.
func (t *tour) figure(what string, got, want int) {
	t.compare(what, got == want, "%d (expected %d)", got, want)
}

// between compares one that depends on the moment.
func (t *tour) between(what string, got, low, high int) {
	t.compare(what, low <= got && got <= high, "%d (expected %d to %d)", got, low, high)
}

// text compares what must be said exactly so.
func (t *tour) text(what, got, want string) {
	t.compare(what, got == want, "%q (expected %q)", got, want)
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
