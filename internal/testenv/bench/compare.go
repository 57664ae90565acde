package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
)

// result is what the pairs of a case have shown.
type result struct {
	rate, cpu, p50, p99 spread // ours by the driver's
	rawSide, ourSide    figures
}

// spread is a median with its quartiles.
type spread struct{ low, mid, high float64 }

// compare runs the pairs of a case.
func (s *stand) compare(ctx context.Context, c benchCase) (result, error) {
	runs := map[string][]figures{}
	for i := range s.pairs {
		order := []string{raw, ours}
		if i%2 == 1 {
			slices.Reverse(order)
		}
		for _, side := range order {
			f, err := s.once(ctx, c, side)
			if err != nil {
				return result{}, err
			}
			runs[side] = append(runs[side], f)
		}
	}
	ratio := func(of func(figures) float64) spread {
		var v []float64
		for i := range s.pairs {
			v = append(v, of(runs[ours][i])/of(runs[raw][i]))
		}
		return spreadOf(v)
	}
	return result{
		rate: ratio(func(f figures) float64 { return f.Rate }), cpu: ratio(func(f figures) float64 { return f.CPU }),
		p50: ratio(func(f figures) float64 { return f.P50 }), p99: ratio(func(f figures) float64 { return f.P99 }),
		rawSide: medians(runs[raw]), ourSide: medians(runs[ours]),
	}, nil
}

// once is a run of one side, on a queue of its own.
func (s *stand) once(ctx context.Context, c benchCase, side string) (f figures, err error) {
	sp := s.spec(c)
	sp.Side = side
	if s.profiles != "" {
		sp.Profile = filepath.Join(s.profiles, fileName.Replace(c.name)+"."+side+".pprof")
	}
	defer func() { err = errors.Join(err, s.remove(sp)) }()
	if err := s.prepare(ctx, sp); err != nil {
		return f, fmt.Errorf("prepare: %w", err)
	}
	if sp.isCall() {
		stop, err := server(ctx, sp)
		if err != nil {
			return f, err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	return process(ctx, sp)
}

var fileName = strings.NewReplacer(" ", "-", ",", "", ":", "", "/", "-")

// spreadOf returns NaN for what was not measured: its ratios are 0 by 0.
func spreadOf(v []float64) spread {
	if slices.ContainsFunc(v, math.IsNaN) {
		return spread{math.NaN(), math.NaN(), math.NaN()}
	}
	slices.Sort(v)
	return spread{v[len(v)/4], (v[(len(v)-1)/2] + v[len(v)/2]) / 2, v[len(v)-1-len(v)/4]}
}

func medians(fs []figures) figures {
	of := func(get func(figures) float64) float64 {
		var v []float64
		for _, f := range fs {
			v = append(v, get(f))
		}
		return spreadOf(v).mid
	}
	return figures{
		CPU: of(func(f figures) float64 { return f.CPU }), Allocs: of(func(f figures) float64 { return f.Allocs }),
		Bytes: of(func(f figures) float64 { return f.Bytes }), Writes: of(func(f figures) float64 { return f.Writes }),
		Seconds: of(func(f figures) float64 { return f.Seconds }), Memory: of(func(f figures) float64 { return f.Memory }),
		Published: of(func(f figures) float64 { return f.Published }), Delivered: of(func(f figures) float64 { return f.Delivered }),
	}
}
