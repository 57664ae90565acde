package outbox

import (
	"sync"
	"sync/atomic"
)

// Wake has what was enqueued sent without waiting for a relay's PollInterval. Call it after a commit; what is not committed
// yet is not seen. It never blocks: a relay of this process is woken at once, those of others by a notification over a
// connection of the pool, at most one every few milliseconds however often Wake is called. It may be called for nothing, and
// when a notification is lost the relays find out by themselves. Without a pool it reaches relays of this Outbox only.
//
// PostgreSQL takes one lock for all of its databases when a transaction commits that notified, so Wake never does so within
// yours; neither should a trigger.
func (o *Outbox) Wake() {
	if o.wake.wakeAll() && o.pool != nil {
		o.notify.trigger(o.notifyRelays)
	}
}

// hub wakes the relays of this process.
type hub struct {
	mu   sync.Mutex
	subs map[*wakeup]struct{}
}

// wakeup is what a relay waits on.
type wakeup struct {
	// C has an element when something may have been enqueued since it was last received from.
	C chan struct{}

	// alone is set by a relay as long as it leads every lane: then nobody else needs to be woken.
	alone atomic.Bool

	hub *hub
}

// subscribe returns a wakeup, to be closed by its relay when it stops.
func (h *hub) subscribe() *wakeup {
	w := &wakeup{C: make(chan struct{}, 1), hub: h}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.subs == nil {
		h.subs = make(map[*wakeup]struct{})
	}
	h.subs[w] = struct{}{}
	return w
}

func (w *wakeup) close() {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	delete(w.hub.subs, w)
}

// wakeAll wakes the relays here, without blocking, and tells whether others may have to be woken elsewhere.
func (h *hub) wakeAll() (others bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	others = true
	for w := range h.subs {
		select {
		case w.C <- struct{}{}:
		default: // it is awake already
		}
		if w.alone.Load() {
			others = false
		}
	}
	return others
}
