package main

import (
	"fmt"
	"io"
	"math"
	"strings"
)

const columns = "| what | rate | CPU | p50 | p99 | CPU µs | allocations | bytes | write calls | bounds |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|---|\n"

func head(w io.Writer) {
	fmt.Fprint(w, "Ratios are ours by the driver's, median (quartiles); what is per message is the driver's → ours.\n\n", columns)
}

// row is the line of a case.
func row(c benchCase, r result) string {
	cells := []string{c.name, r.rate.String(), r.cpu.String(), r.p50.String(), r.p99.String(),
		both(r, func(f figures) float64 { return f.CPU }, "%.1f"), both(r, func(f figures) float64 { return f.Allocs }, "%.1f"),
		both(r, func(f figures) float64 { return f.Bytes }, "%.0f"), both(r, func(f figures) float64 { return f.Writes }, "%.2f"), c.target.judge(r)}
	return "| " + strings.Join(cells, " | ") + " |\n"
}

func (s spread) String() string {
	if math.IsNaN(s.mid) || math.IsInf(s.mid, 0) {
		return "–"
	}
	return fmt.Sprintf("%.2f (%.2f–%.2f)", s.mid, s.low, s.high)
}

// both writes what a message costs on either side.
func both(r result, of func(figures) float64, format string) string {
	if of(r.rawSide) == 0 && of(r.ourSide) == 0 {
		return "–"
	}
	return fmt.Sprintf(format+" → "+format, of(r.rawSide), of(r.ourSide))
}

// judge says which bounds are met.
func (t target) judge(r result) string {
	var said []string
	check := func(name string, bound, value float64, atLeast bool) {
		if bound == 0 {
			return
		}
		sign, met := "≤", value <= bound
		if atLeast {
			sign, met = "≥", value >= bound
		}
		text := fmt.Sprintf("%s %s %g", name, sign, bound)
		if !met {
			text = "**not " + text + "**"
		}
		said = append(said, text)
	}
	check("rate", t.rate, r.rate.mid, true)
	check("CPU", t.cpu, r.cpu.mid, false)
	check("p50", t.p50, r.p50.mid, false)
	check("p99", t.p99, r.p99.mid, false)
	check("allocations", t.allocs, math.Round(r.ourSide.Allocs), false)
	check("write calls", t.writes, r.ourSide.Writes, false)
	return strings.Join(said, ", ")
}

// describe names a case after what it does.
func (c benchCase) describe() string {
	unit := "caller"
	if c.path == "consume" {
		unit = "worker"
	}
	if c.callers > 1 {
		unit += "s"
	}
	path := c.path
	if path == "call-fast" {
		path = "call, transient on both sides"
	}
	name := fmt.Sprintf("%s, %d %s, %s, %s", path, c.callers, unit, size(c.size), c.queue)
	if c.link != "" {
		name += ", " + c.link
	}
	if c.busy > 0 {
		name += fmt.Sprintf(", %d goroutines compute", c.busy)
	}
	return name
}

// size writes a number of bytes.
func size(n int) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}
