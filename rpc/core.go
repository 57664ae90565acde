package rpc

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warrenmq/warren/internal/telemetry"
	"github.com/warrenmq/warren/reconnect"
)

// core is what a Client and those made from it share: two lines, and what their calls have in common.
//
// A queue that is full refuses a request only to a channel in confirm mode; to another it drops it without a word. But
// confirmations cost every call a tenth of its latency and more of its CPU, and most queues refuse nothing. So the first
// call to a queue goes over the line with confirmations, and further ones over the plain line, unless the answer said that the
// queue has a limit. See routes.
type core struct {
	conn   *reconnect.Conn
	cfg    ClientConfig
	plain  *line
	checks *line
	routes routes
	tell   *telemetry.T
	nodes  *nodes
	ids    ids
	pool   sync.Pool // of *call, without a request

	expirations expirations
	absent      atomic.Pointer[absence]

	pending, dropped atomic.Int64
}

func newCore(conn *reconnect.Conn, cfg ClientConfig) *core {
	common := conn.Config()
	tell := telemetry.New(telemetry.Config{TracerProvider: common.TracerProvider, MeterProvider: common.MeterProvider, Propagator: common.Propagator,
		Logger: common.Logger})
	c := &core{conn: conn, cfg: cfg, tell: tell, nodes: newNodes(), pool: sync.Pool{New: func() any { return newCall() }}}
	name := "rpc client"
	if cfg.Exchange != "" {
		name += " of " + cfg.Exchange
	}
	c.plain, c.checks = newLine(c, name, false), newLine(c, name+", with confirmations", true)
	return c
}

// lineTo returns the line for a call with that key.
func (c *core) lineTo(key string, now time.Time) *line {
	if c.routes.plain(key, now) {
		return c.plain
	}
	return c.checks
}

// blocked returns ErrBlocked while the broker blocks publishers.
func (c *core) blocked() error {
	for _, s := range c.conn.State() {
		if s.Name == "publishing" && s.Phase == "blocked" {
			return reconnect.ErrBlocked
		}
	}
	return nil
}

// absence is what is known of an exchange that is not there.
type absence struct {
	err   error
	until time.Time
}

// askAgain is how often a missing exchange is asked for at most: until a server has made it every call does.
const askAgain = 100 * time.Millisecond

// missing returns the error of a call to an exchange that was not there a moment ago.
func (c *core) missing() error {
	if a := c.absent.Load(); a != nil && time.Now().Before(a.until) {
		return a.err
	}
	return nil
}

// closeWithin bounds close whatever its context says.
const closeWithin = 30 * time.Second

func (c *core) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closeWithin)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- c.checks.close(ctx) }()
	err := c.plain.close(ctx)
	if other := <-done; err == nil {
		err = other
	}
	return err
}
