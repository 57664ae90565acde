package main

import (
	"context"
	"fmt"
	"io"
)

// growing is what a run measures beside rates: for each of some numbers, of workers, messages or entities.
type growing struct {
	name, path, queue string
	numbers           []int
	unit              string
	value             func(figures) float64 // in that unit
}

func kib(f figures) float64         { return f.Memory / 1024 }
func seconds(f figures) float64     { return f.Seconds * 1e3 }
func toPublished(f figures) float64 { return f.Published * 1e3 }
func toDelivered(f figures) float64 { return f.Delivered * 1e3 }

var growth = []growing{
	{"memory of an idle worker", "idle", classic, []int{10, 100, 1000}, "KiB", kib},
	{"memory of a message of 256 B in flight", "inflight", classic, []int{1000, 10_000, 100_000}, "KiB", kib},
	{"X1 first confirmed publish after a cut; the driver dials again after 100 ms", "recover", quorum, []int{1}, "ms", toPublished},
	{"X1 first delivery after a cut", "recover", quorum, []int{1}, "ms", toDelivered},
	{"first channel after a cut, by entities declared again", "topology", classic, []int{10, 100, 1000}, "ms", seconds},
	{"memory of an entity", "topology", classic, []int{1000}, "KiB", kib},
}

// growth prints what grows with a number, and how soon both sides are back after a cut.
func (s *stand) growth(ctx context.Context, out io.Writer) error {
	headed := false
	for _, g := range growth {
		if !s.only.MatchString(g.name) {
			continue
		}
		if !headed {
			fmt.Fprint(out, "\n| what | how many | the driver | ours |\n|---|--:|--:|--:|\n")
			headed = true
		}
		for _, n := range g.numbers {
			theirs, err := s.grown(ctx, g, n, raw)
			if err != nil {
				return fmt.Errorf("%s: %w", g.name, err)
			}
			mine, err := s.grown(ctx, g, n, ours)
			if err != nil {
				return fmt.Errorf("%s: %w", g.name, err)
			}
			fmt.Fprintf(out, "| %s | %d | %s | %s |\n", g.name, n, theirs, mine)
		}
	}
	return nil
}

// grown returns the median of some runs of one side, if it has such a run.
func (s *stand) grown(ctx context.Context, g growing, n int, side string) (string, error) {
	if paths[g.path][side] == nil {
		return "–", nil
	}
	var fs []figures
	for range s.pairs {
		f, err := s.once(ctx, benchCase{name: g.name, path: g.path, queue: g.queue, callers: n, size: 256}, side)
		if err != nil {
			return "", err
		}
		fs = append(fs, f)
	}
	return fmt.Sprintf("%.1f %s", g.value(medians(fs)), g.unit), nil
}
