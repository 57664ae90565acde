package outbox

import (
	"context"
	"sync"
	"time"
)

const (
	// notifyPause lies between two notifications. The first call leads, and one more follows the last.
	notifyPause = 5 * time.Millisecond

	// notifyTime bounds the wait for a connection and the notification: by then the relays have looked by themselves.
	notifyTime = time.Second

	// notifyFailures in a row are worth a line in the log; fewer are what a pool leaves that is being closed.
	notifyFailures = 3
)

// debouncer runs one function at a time in the background, at most once every notifyPause, and once more after the last
// call. Its goroutine lives only as long as there are calls.
type debouncer struct {
	mu      sync.Mutex
	running bool
	again   bool
}

// trigger has fn run soon, not before it is called.
func (d *debouncer) trigger(fn func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.running {
		d.again = true
		return
	}
	d.running = true
	go d.run(fn)
}

func (d *debouncer) run(fn func()) {
	for {
		fn()
		time.Sleep(notifyPause)
		d.mu.Lock()
		if !d.again {
			d.running = false
			d.mu.Unlock()
			return
		}
		d.again = false
		d.mu.Unlock()
	}
}

// notifyRelays wakes relays in other processes, in a transaction of its own.
func (o *Outbox) notifyRelays() {
	ctx, cancel := context.WithTimeout(context.Background(), notifyTime)
	defer cancel()
	if _, err := o.pool.Exec(ctx, "SELECT pg_notify("+o.tables.channel()+", '')"); err == nil {
		o.notifyFailures.Store(0)
	} else if o.notifyFailures.Add(1) == notifyFailures {
		o.cfg.Logger.Warn("outbox: relays of other processes cannot be notified and find messages by polling",
			"table", o.cfg.Table, "error", err)
	}
}
