package consume

import (
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/warrenmq/warren/internal/telemetry"
)

// Stats counts messages since the loop was made, over all its workers and Runs.
type Stats struct {
	Handled    uint64 // handler returned nil, and the ack was sent or is about to be
	Failed     uint64 // dead-lettered: handler's error, panic, too large
	Panics     uint64 // of the failed: by a panic
	NotNow     uint64 // answers "not now", also of a dead-letter copy that could not be confirmed
	Returned   uint64 // handed back
	Stale      uint64 // finished, but not settled: their channel was gone
	HandSettle uint64 // Ack, Nack or Reject called by a handler: refused
}

type counters struct {
	handled, failed, panics, notNow, returned, stale atomic.Uint64

	tell *telemetry.Consumer // may be nil
}

func (c *counters) countHandled() { c.count(&c.handled, telemetry.Acknowledged, 1) }

func (c *counters) countFailed() { c.count(&c.failed, telemetry.DeadLettered, 1) }

func (c *counters) countReturned(n int) { c.count(&c.returned, telemetry.Returned, n) }

func (c *counters) countStale(n int) { c.count(&c.stale, telemetry.Stale, n) }

func (c *counters) count(which *atomic.Uint64, outcome string, n int) {
	which.Add(uint64(n))
	c.tell.Settled(outcome, n)
}

// errHandSettle is what a handler gets that settles by itself.
var errHandSettle = errors.New("the handler's return value settles its message; Ack, Nack and Reject do nothing here")

// hands is the acknowledger of the deliveries that handlers see: it refuses, counts and tells once.
type hands struct {
	n    atomic.Uint64
	once sync.Once
	log  *slog.Logger
}

func (h *hands) refuse() error {
	h.n.Add(1)
	h.once.Do(func() { h.log.Warn("a handler tried to settle its message by hand; this does nothing") })
	return errHandSettle
}

func (h *hands) Ack(uint64, bool) error        { return h.refuse() }
func (h *hands) Nack(uint64, bool, bool) error { return h.refuse() }
func (h *hands) Reject(uint64, bool) error     { return h.refuse() }
