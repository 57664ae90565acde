package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"os"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
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
}

// paths are what a run can do, by the names of both sides' functions for it.
var paths = map[string]map[string]func(context.Context, spec) (figures, error){
	"publish":   {raw: publishRaw, ours: publishOurs},
	"batch":     {raw: batchRaw, ours: batchOurs},
	"consume":   {raw: consumeRaw, ours: workOurs},
	"subscribe": {raw: consumeRaw, ours: subscribeOurs},
	"call":      {raw: callPersistent, ours: callOurs},
	"call-fast": {raw: callTransient, ours: callOurs},
	"latency":   {raw: latencyRaw, ours: latencyOurs},
	"serve":     {raw: serve},
	"idle":      {raw: idleRaw, ours: idleOurs},
	"inflight":  {raw: inFlightRaw, ours: inFlightOurs},
	"recover":   {raw: recoverRaw, ours: recoverOurs},
	"topology":  {ours: topologyOurs},
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

func (s spec) tls() *tls.Config {
	if s.CA == "" {
		return nil
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(s.CA))
	return &tls.Config{RootCAs: pool}
}

// dialRaw connects with the driver alone.
func (s spec) dialRaw() (*amqp.Connection, error) {
	return amqp.DialConfig(s.URL, amqp.Config{TLSClientConfig: s.tls()})
}

// dialOurs connects with defaults.
func (s spec) dialOurs(ctx context.Context) (*reconnect.Conn, error) {
	return reconnect.Dial(ctx, s.URL, reconnect.Config{Name: "bench", TLS: s.tls(), Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
}
