package main

import amqp "github.com/rabbitmq/amqp091-go"

// The links that a case can use beside the plain one.
const (
	linkTLS  = "TLS"
	linkSlow = "5 ms"
)

// benchCase is one row.
type benchCase struct {
	name     string
	path     string
	queue    string // its type
	callers  int
	size     int
	prefetch int
	messages int
	link     string
	busy     int // goroutines that compute beside it
	target   target
}

// target is what a row should reach: ratios of the driver's, but for allocs and writes, which are ours. 0: none.
type target struct{ rate, cpu, p50, p99, allocs, writes float64 }

const (
	quorum  = amqp.QueueTypeQuorum
	classic = amqp.QueueTypeClassic
)

// The bounds by the names that the plan of the project gives them.
var (
	p1 = target{rate: 0.95, cpu: 0.90, p99: 1.5, allocs: 33}
	p3 = target{p50: 1.05, cpu: 1.10}
	p4 = target{rate: 0.95, cpu: 0.80}
	p5 = target{rate: 0.95, cpu: 0.80, allocs: 32, writes: 0.1}
	c1 = target{rate: 1.3, cpu: 0.85, allocs: 33, writes: 0.15}
	c3 = target{rate: 0.8}
	r1 = target{rate: 1.15, p50: 0.87, cpu: 1.0, allocs: 78}
	r2 = target{p50: 1.05}
	l1 = target{p50: 1.10}
)

func cases(long bool) []benchCase {
	if long {
		return longCases()
	}
	return []benchCase{
		{name: "P1 publish, 16 callers, quorum", path: "publish", queue: quorum, callers: 16, size: 256, target: p1},
		{name: "P1 publish, 16 callers, classic", path: "publish", queue: classic, callers: 16, size: 256, target: p1},
		{name: "P3 publish, one caller, quorum", path: "publish", queue: quorum, callers: 1, size: 256, target: p3},
		{name: "P4 publish, 128 callers, quorum", path: "publish", queue: quorum, callers: 128, size: 256, target: p4},
		{name: "P5 batch, 256 B, quorum", path: "batch", queue: quorum, callers: 1, size: 256, target: p5},
		{name: "P5 batch, 256 B, classic", path: "batch", queue: classic, callers: 1, size: 256, target: p5},
		{name: "P5 batch, 4 KiB, quorum", path: "batch", queue: quorum, callers: 1, size: 4096, target: p5},
		{name: "P5 batch, 4 KiB, classic", path: "batch", queue: classic, callers: 1, size: 4096, target: p5},
		{name: "C1 consume, prefetch 100, one worker, quorum", path: "consume", queue: quorum, callers: 1, size: 256, prefetch: 100, messages: 15000, target: c1},
		{name: "C1 consume, prefetch 100, one worker, classic", path: "consume", queue: classic, callers: 1, size: 256, prefetch: 100, messages: 15000, target: c1},
		{name: "C2 consume, prefetch 100, 16 workers, quorum", path: "consume", queue: quorum, callers: 16, size: 256, prefetch: 100, messages: 15000, target: c1},
		{name: "C2 consume, prefetch 100, 16 workers, classic", path: "consume", queue: classic, callers: 16, size: 256, prefetch: 100, messages: 15000, target: c1},
		{name: "C2 the same, the driver with prefetch 1,600, quorum", path: "consume-wide", queue: quorum, callers: 16, size: 256, prefetch: 100, messages: 15000},
		{name: "C2 the same, the driver with prefetch 1,600, classic", path: "consume-wide", queue: classic, callers: 16, size: 256, prefetch: 100, messages: 15000},
		{name: "C3 subscriber, all defaults, quorum", path: "subscribe", queue: quorum, callers: 1, size: 256, messages: 15000, target: c3},
		{name: "work queue, all defaults: prefetch 1, quorum", path: "consume", queue: quorum, callers: 1, size: 256, messages: 2000},
		{name: "R1 call, 16 callers", path: "call", queue: classic, callers: 16, size: 256, target: r1},
		{name: "R1 call, 128 callers", path: "call", queue: classic, callers: 128, size: 256, target: r1},
		{name: "R2 call, one caller", path: "call-fast", queue: classic, callers: 1, size: 256, target: r2},
		{name: "L1 publish to handler, 500/s, quorum", path: "latency", queue: quorum, callers: 1, size: 256, target: l1},
	}
}

// longCases are one thing varied at a time.
func longCases() (out []benchCase) {
	for _, callers := range []int{1, 4, 16, 64, 256} {
		out = append(out, benchCase{path: "publish", queue: quorum, callers: callers, size: 256})
	}
	for _, callers := range []int{1, 4, 16, 64, 256} {
		out = append(out, benchCase{path: "call", queue: classic, callers: callers, size: 256},
			benchCase{path: "call-fast", queue: classic, callers: callers, size: 256})
	}
	for _, workers := range []int{1, 4, 16} {
		out = append(out, benchCase{path: "consume", queue: quorum, callers: workers, size: 256, prefetch: 100, messages: 15000})
	}
	for _, size := range []int{16, 256, 4 << 10, 64 << 10, 1 << 20} {
		out = append(out, benchCase{path: "publish", queue: classic, callers: 16, size: size},
			benchCase{path: "consume", queue: classic, callers: 1, size: size, prefetch: 100, messages: min(15000, 200<<20/size)})
	}
	for _, link := range []string{linkTLS, linkSlow} {
		for _, callers := range []int{1, 16, 128} {
			out = append(out, benchCase{path: "publish", queue: quorum, callers: callers, size: 256, link: link})
		}
		out = append(out, benchCase{path: "batch", queue: quorum, callers: 1, size: 256, link: link},
			benchCase{path: "consume", queue: quorum, callers: 1, size: 256, prefetch: 100, messages: 5000, link: link},
			benchCase{path: "call", queue: classic, callers: 16, size: 256, link: link})
	}
	for _, callers := range []int{1, 16, 128} {
		out = append(out, benchCase{path: "publish", queue: quorum, callers: callers, size: 256, busy: 4},
			benchCase{path: "call", queue: classic, callers: callers, size: 256, busy: 4})
	}
	for _, workers := range []int{1, 16} {
		out = append(out, benchCase{path: "consume", queue: quorum, callers: workers, size: 256, prefetch: 100, messages: 2000, busy: 4})
	}
	for i := range out {
		out[i].name = out[i].describe()
	}
	return out
}
