// Command bench runs code on the bare driver and code on this module in turn, against a real broker, and prints what ours
// costs as ratios of what the driver costs when it is used well by hand.
//
//	bench [-run regexp] [-pairs 7] [-for 500ms] [-o file] [-profiles dir]   the short form, under five minutes
//	bench -long ...   with more callers, sizes and links, and how cost grows
//
// Each run is a process of its own that does one thing on one side: a pair is a run of each, raw first and then ours, the next
// pair the other way round. What is printed is the median of the pairs' ratios with their quartiles; of allocations, bytes
// and system calls the medians of both sides. Absolute times mean nothing: broker and client share the machine.
//
// The broker is the one that WARREN_BROKER or AMQP_URL names, else this machine's own. The table goes to standard output
// and, as Markdown, to the file of -o.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"strings"
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
	flag.BoolVar(&o.long, "long", false, "more callers, sizes and links, and how cost grows")
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
	var table strings.Builder
	fmt.Fprintf(&table, "RabbitMQ %s, %s, %s/%s, %d cores shared by broker and client, %d pairs.\n\n", s.broker.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), o.pairs)
	head(&table)
	fmt.Print(table.String())
	for _, c := range cases(o.long) {
		if !o.only.MatchString(c.name) {
			continue
		}
		r, err := s.compare(ctx, c)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		line := row(c, r)
		fmt.Print(line)
		table.WriteString(line)
	}
	if o.long {
		if err := s.growth(ctx, &table); err != nil {
			return err
		}
	}
	fmt.Printf("\nin %.0f s\n", time.Since(began).Seconds())
	if o.out == "" {
		return nil
	}
	return os.WriteFile(o.out, []byte(table.String()), 0o644)
}

// childArg makes this program one run, whose spec comes on standard input and whose figures go to standard output.
const childArg = "child"

func child(ctx context.Context) error {
	var s spec
	if err := json.NewDecoder(os.Stdin).Decode(&s); err != nil {
		return err
	}
	f, err := s.run(ctx)
	if err != nil {
		return fmt.Errorf("%s %s: %w", s.Side, s.Path, err)
	}
	return json.NewEncoder(os.Stdout).Encode(f)
}
