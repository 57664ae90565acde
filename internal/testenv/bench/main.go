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

func parse() (options, error) {
	var o options
	flag.BoolVar(&o.long, "long", false, "instead of the short form: other callers, sizes and links, and how cost grows")
	only := flag.String("run", "", "only the cases whose name matches this regexp")
	flag.IntVar(&o.pairs, "pairs", 7, "pairs a case")
	flag.DurationVar(&o.time, "for", 500*time.Millisecond, "how long a run measures")
	flag.StringVar(&o.out, "o", "", "file for the table")
	flag.StringVar(&o.profiles, "profiles", "", "existing directory for a CPU profile of the last run of each case and side")
	flag.Parse()
	var err error
	o.only, err = regexp.Compile(*only)
	if o.pairs < 1 || o.time <= 0 {
		err = errors.Join(err, errors.New("-pairs and -for must be positive"))
	}
	return o, err
}

func parent(ctx context.Context) (err error) {
	o, err := parse()
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
