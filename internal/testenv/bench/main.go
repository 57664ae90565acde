// Command bench runs code on the bare driver and code on this module in turn, against a real broker, and prints what ours
// costs as ratios of what the driver costs when it is used well by hand.
//
//	bench [-run regexp] [-pairs 7] [-for 500ms] [-o file] [-profiles dir]   the short form, under five minutes
//	bench -long ...   instead of these, one thing varied at a time: callers, sizes, links; and how cost grows
//
// Each run is a process of its own that does one thing on one side: a pair is a run of each, raw first and then ours, the next
// pair the other way round. What is printed is the median of the pairs' ratios with their quartiles; of allocations, bytes
// and system calls the medians of both sides. Absolute times mean nothing: broker and client share the machine.
//
// The broker is the one that WARREN_BROKER or AMQP_URL names, else this machine's own. The table goes to standard output
// and, as Markdown, to the file of -o.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	run := parent
	if len(os.Args) == 2 && os.Args[1] == childArg {
		run = child
	}
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	long  bool
	only  *regexp.Regexp
	pairs int
	time  time.Duration
	out   string

	profiles string
}

func parse(args []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.BoolVar(&o.long, "long", false, "instead of the short form: other callers, sizes and links, and how cost grows")
	only := flags.String("run", "", "only the cases whose name matches this regexp")
	flags.IntVar(&o.pairs, "pairs", 7, "pairs a case")
	flags.DurationVar(&o.time, "for", 500*time.Millisecond, "how long a run measures; a consumer's lasts for its number of messages")
	flags.StringVar(&o.out, "o", "", "file for the table")
	flags.StringVar(&o.profiles, "profiles", "", "existing directory for a CPU profile of the last run of each case and side")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	var err error
	if o.only, err = regexp.Compile(*only); err != nil {
		return o, fmt.Errorf("-run: %w", err)
	}
	return o, o.check(flags.Args())
}

// check finds what would fail later, or do nothing, before anything is measured.
func (o options) check(rest []string) error {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unexpected %q: there are only flags", rest)
	case o.pairs < 1 || o.time <= 0:
		return errors.New("-pairs and -for must be positive")
	case !o.matches():
		return fmt.Errorf("-run %q: no case has such a name (with -long there are others)", o.only)
	}
	if o.profiles != "" {
		if dir, err := os.Stat(o.profiles); err != nil || !dir.IsDir() {
			return fmt.Errorf("-profiles %q is not a directory", o.profiles)
		}
	}
	if o.out == "" {
		return nil
	}
	file, err := os.OpenFile(o.out, os.O_WRONLY|os.O_CREATE, 0o644) // the table of before stays until there is another
	if err != nil {
		return fmt.Errorf("-o: %w", err)
	}
	return file.Close()
}

// matches reports whether there is anything to run.
func (o options) matches() bool {
	for _, c := range cases(o.long) {
		if o.only.MatchString(c.name) {
			return true
		}
	}
	for _, g := range growth {
		if o.long && o.only.MatchString(g.name) {
			return true
		}
	}
	return false
}

func parent(ctx context.Context) (err error) {
	o, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	s, err := newStand(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	began := time.Now()
	var table bytes.Buffer
	if err := s.tables(ctx, io.MultiWriter(&table, os.Stdout)); err != nil {
		return err
	}
	fmt.Printf("\nin %.0f s\n", time.Since(began).Seconds())
	if o.out == "" {
		return nil
	}
	return os.WriteFile(o.out, table.Bytes(), 0o644)
}

// tables measures all that is asked for, and writes each line as soon as it is known.
func (s *stand) tables(ctx context.Context, out io.Writer) error {
	fmt.Fprintf(out, "RabbitMQ %s, %s, %s/%s, %d cores shared by broker and client, %d pairs.\n\n",
		s.broker.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), s.pairs)
	head(out)
	for _, c := range cases(s.long) {
		if !s.only.MatchString(c.name) {
			continue
		}
		if c.link == linkTLS && s.broker.TLSURL == "" {
			fmt.Fprintf(os.Stderr, "bench: left out, for want of a TLS listener (not with AMQP_URL): %s\n", c.name)
			continue
		}
		r, err := s.compare(ctx, c)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		fmt.Fprint(out, row(c, r))
	}
	if s.long {
		return s.growth(ctx, out)
	}
	return nil
}
