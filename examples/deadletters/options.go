package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/warrenmq/warren/retry"
)

// options are a command's flags.
type options struct {
	name  string
	queue string

	all    bool
	ids    values
	reason string
	key    string
	text   string
	older  time.Duration
	limit  int
	rate   float64
	dryRun bool
	body   int
}

// values is a flag that may be given several times.
type values []string

func (l *values) String() string     { return strings.Join(*l, ",") }
func (l *values) Set(v string) error { *l = append(*l, v); return nil }

// parse reads the flags of a command, which may stand before and after the queue.
func parse(name string, args []string, out io.Writer) (options, error) {
	o := options{name: name}
	f := flag.NewFlagSet("deadletters "+name, flag.ContinueOnError)
	f.SetOutput(out)
	if slices.Contains([]string{"list", "show", "redrive", "discard"}, name) {
		f.Var(&o.ids, "id", "those with this message id; may be given several times")
		f.StringVar(&o.reason, "reason", "", "those with this reason: exhausted, permanent, rejected, expired, delivery_limit, …")
		f.StringVar(&o.key, "key", "", "those that were first delivered with this routing key")
		f.StringVar(&o.text, "error", "", "those whose last error contains this text")
		f.DurationVar(&o.older, "older", 0, "those that failed last longer ago than this; not those of which nobody knows when")
		f.IntVar(&o.limit, "n", 0, "so many at most, the oldest ones (default: no limit)")
	}
	switch name {
	case "show":
		f.IntVar(&o.body, "body", 4096, "bytes of the body to show")
	case "redrive", "discard":
		f.BoolVar(&o.all, "all", false, "all of them")
		f.Float64Var(&o.rate, "rate", 0, "so many a second at most (default: no limit)")
		f.BoolVar(&o.dryRun, "dry-run", false, "only count them")
	}
	var rest []string
	for len(args) > 0 {
		if err := f.Parse(args); err != nil {
			return o, err
		}
		if args = f.Args(); len(args) > 0 {
			rest, args = append(rest, args[0]), args[1:]
		}
	}
	if len(rest) != 1 {
		return o, fmt.Errorf("%s: one QUEUE is needed", name)
	}
	o.queue = rest[0]
	if o.limit < 0 || o.rate < 0 || o.body < 0 || o.older < 0 {
		return o, errors.New("-n, -rate, -body, -older: must not be negative")
	}
	if (name == "redrive" || name == "discard") && o.all == o.picks() {
		return o, fmt.Errorf("%s: either -all, or flags that say which: -id, -reason, -key, -error, -older, -n", name)
	}
	return o, nil
}

// picks reports whether flags say which messages are meant.
func (o options) picks() bool { return o.filters() || o.limit > 0 }

func (o options) filters() bool {
	return len(o.ids) > 0 || o.reason != "" || o.key != "" || o.text != "" || o.older > 0
}

// selection is what the flags mean.
func (o options) selection() retry.Selection {
	s := retry.Selection{Limit: o.limit, PerSecond: o.rate, DryRun: o.dryRun}
	if o.filters() {
		s.Where = o.means
	}
	return s
}

func (o options) means(l retry.DeadLetter) bool {
	return (len(o.ids) == 0 || slices.Contains(o.ids, l.MessageId)) &&
		(o.reason == "" || l.Reason == o.reason) &&
		(o.key == "" || l.RoutingKey == o.key) &&
		(o.text == "" || strings.Contains(l.LastError, o.text)) &&
		(o.older == 0 || !l.LastFailure.IsZero() && time.Since(l.LastFailure) > o.older)
}
