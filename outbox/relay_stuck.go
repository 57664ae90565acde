package outbox

import (
	"context"
	"sync/atomic"
	"time"
)

// stuckAfter is how long the sender may be at the same rows before it is taken for stuck.
const stuckAfter = time.Second

// progress tells whether the sender gets on with its rows.
type progress struct {
	since atomic.Int64  // when it began with the rows that it is at, in ns since 1970; 0 when it is at none
	freed chan struct{} // has an element when it has ended with some
}

func (s *progress) begin() { s.since.Store(time.Now().UnixNano()) }

func (s *progress) end() {
	s.since.Store(0)
	select {
	case s.freed <- struct{}{}:
	default:
	}
}

func (s *progress) stuck() bool {
	since := s.since.Load()
	return since != 0 && time.Since(time.Unix(0, since)) > stuckAfter
}

// awaitSender waits as long as the sender is stuck, because the broker is away or blocks: more rows are of no use then. It asks
// the database nothing but whether this relay still leads.
func (t *term) awaitSender(ctx context.Context) error {
	if !t.progress.stuck() {
		return nil
	}
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	for t.progress.stuck() {
		select {
		case <-t.progress.freed:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
			if err := t.office.probe(t.sending); err != nil {
				return err
			}
		}
	}
	return nil
}
