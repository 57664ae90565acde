package outbox

import "sync"

// hub wakes the relays of this process.
type hub struct {
	mu   sync.Mutex
	subs map[*wakeup]struct{}
}

// wakeup is what a relay waits on.
type wakeup struct {
	// C has an element when something may have been enqueued since it was last received from.
	C chan struct{}

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

// wakeAll never blocks.
func (h *hub) wakeAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.subs {
		select {
		case w.C <- struct{}{}:
		default: // it is awake already
		}
	}
}
