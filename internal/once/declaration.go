package once

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/warrenmq/warren/internal/leave"
	"github.com/warrenmq/warren/reconnect"
)

// Declaration is what has to be declared before a publisher's first message. It is part of the publish: it ends when that
// has to, and what waits for it is bounded as what waits to be published.
type Declaration struct {
	conn    *reconnect.Conn
	cfg     reconnect.PublisherConfig
	declare func(ctx context.Context) error
	done    *Success
}

// Defaults of reconnect.PublisherConfig.
const (
	timeout    = 30 * time.Second
	maxWaiting = 10_000
)

// NewDeclaration returns a Declaration that has not been made, for publishes with the settings cfg on conn.
func NewDeclaration(conn *reconnect.Conn, cfg reconnect.PublisherConfig, declare func(ctx context.Context) error) *Declaration {
	return &Declaration{conn: conn, cfg: cfg, declare: declare, done: New(cmp.Or(cfg.MaxWaiting, maxWaiting))}
}

// Do makes the declaration unless it was. With FailFast it does not wait for a link, and leaves it to the publish to say
// that there is none.
func (d *Declaration) Do(ctx context.Context) error {
	if d.done.Happened() || d.cfg.FailFast && !d.connected() {
		return nil
	}
	if _, bounded := ctx.Deadline(); !bounded && d.cfg.Timeout >= 0 {
		// Around the wait for others, too: each of them may take that long.
		limit := cmp.Or(d.cfg.Timeout, timeout)
		within, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("PublisherConfig.Timeout of %v has passed", limit))
		defer cancel()
		ctx = within
	}
	ctx, declared := leave.ToSend(ctx)
	defer declared()
	err := d.done.Do(ctx, d.declare)
	if errors.Is(err, ErrFull) {
		return reconnect.ErrBusy
	}
	return err
}

func (d *Declaration) connected() bool {
	for _, s := range d.conn.State() {
		if s.Name == "publishing" && s.Phase == "connected" {
			return true
		}
	}
	return false
}
