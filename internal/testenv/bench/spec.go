package main

import (
	"context"
	"errors"
	"os"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warrenmq/warren/internal/testenv"
)

// The two sides of a pair.
const (
	raw  = "raw"
	ours = "ours"
)

// spec is one run, as its process is told.
type spec struct {
	Side, Path string
	URL        string
	CA         string // in PEM, for a URL that begins with amqps
	Exchange   string // of a subscription
	Queue      string
	Classic    bool
	Callers    int // of publishers and clients; handlers at once of a consumer
	Size       int // of a body, in bytes
	Prefetch   int
	Messages   int // that a consumer finds
	Busy       int // goroutines that compute beside it
	For        time.Duration
	Profile    string // file for a CPU profile, if any

	proxy *testenv.FaultProxy // see proxied
}

// runFunc does one thing on one side.
type runFunc func(context.Context, spec) (figures, error)

// paths are what a run can do, by the names of both sides' functions for it.
var paths = map[string]map[string]runFunc{
	"publish":      {raw: onRaw(publishRaw), ours: onOurs(publishOurs)},
	"batch":        {raw: onRaw(batchRaw), ours: onOurs(batchOurs)},
	"consume":      {raw: onRaw(consumeRaw), ours: onOurs(workOurs)},
	"consume-wide": {raw: onRaw(consumeWideRaw), ours: onOurs(workOurs)},
	"subscribe":    {raw: onRaw(consumeRaw), ours: onOurs(subscribeOurs)},
	"call":         {raw: onRaw(callPersistent), ours: onOurs(callOurs)},
	"call-fast":    {raw: onRaw(callTransient), ours: onOurs(callOurs)},
	"serve":        {raw: onRaw(serve)},
	"latency":      {raw: onRaw(latencyRaw), ours: onOurs(latencyOurs)},
	"idle":         {raw: onRaw(idleRaw), ours: onOurs(idleOurs)},
	"inflight":     {raw: proxied(inFlightRaw), ours: proxied(inFlightOurs)},
	"recover":      {raw: proxied(recoverRaw), ours: proxied(onOurs(recoverOurs))},
	"topology":     {ours: proxied(onOurs(topologyOurs))},
}

func (s spec) run(ctx context.Context) (figures, error) {
	f := paths[s.Path][s.Side]
	if f == nil {
		return figures{}, errors.New("no such run")
	}
	defer s.compute()()
	if s.Profile == "" {
		return f(ctx, s)
	}
	file, err := os.Create(s.Profile)
	if err != nil {
		return figures{}, err
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return figures{}, errors.Join(err, file.Close())
	}
	found, err := f(ctx, s)
	pprof.StopCPUProfile()
	return found, errors.Join(err, file.Close())
}

// compute keeps the processors busy until the returned function is called.
func (s spec) compute() (stop func()) {
	var over atomic.Bool
	var wg sync.WaitGroup
	for range s.Busy {
		wg.Go(func() {
			for !over.Load() {
			}
		})
	}
	return func() { over.Store(true); wg.Wait() }
}
