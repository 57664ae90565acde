package exchange

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// The pauses between two looks at a live queue, when it holds little and when it fills up.
const (
	calm  = time.Second
	tense = 100 * time.Millisecond
)

// overflow suspects that a live queue, which drops its oldest messages without telling anybody, has dropped some.
//
// A queue found full has probably dropped messages since it was looked at last; one found full the last time may have
// done so in between. So both are reported, and whoever forgets at each report what it knew is right after the last one.
type overflow struct {
	call func()
	log  *slog.Logger

	mu      sync.Mutex
	full    bool // at the last look
	calling bool
	again   bool // call once more when it returns
	calls   sync.WaitGroup
}

// look is told how many messages are ready in a queue that takes limit, with at most held more on their way to handlers.
// It returns when to look again.
func (o *overflow) look(ready, limit, held int64) (next time.Duration) {
	full := ready >= suspicious(limit, held)
	o.mu.Lock()
	defer o.mu.Unlock()
	was := o.full
	o.full = full
	if full || was {
		o.report(ready, limit, full && !was)
	}
	if 4*ready >= limit {
		return tense
	}
	return calm
}

// suspicious is the number of ready messages from which on a queue counts as full: what was taken off a full one a
// moment ago leaves it below its limit. Half empty it is not full, however much is held.
func suspicious(limit, held int64) int64 {
	return max(limit-held, (limit+1)/2)
}

// report calls back, one call at a time and not from the caller's goroutine, which has other things to do. mu is held.
func (o *overflow) report(ready, limit int64, begins bool) {
	if begins {
		o.log.Warn("live subscription's queue is full; messages may have been dropped", "ready", ready, "limit", limit)
	}
	if o.call == nil {
		return
	}
	if o.calling {
		o.again = true
		return
	}
	o.calling = true
	o.calls.Go(o.callBack)
}

func (o *overflow) callBack() {
	for {
		protect(o.log, "OnOverflow", o.call)
		o.mu.Lock()
		if !o.again {
			o.calling = false
			o.mu.Unlock()
			return
		}
		o.again = false
		o.mu.Unlock()
	}
}

// wait returns, after the last look, when no call is in progress or ctx has ended.
func (o *overflow) wait(ctx context.Context) {
	within(ctx, o.calls.Wait)
	o.mu.Lock()
	o.full = false
	o.mu.Unlock()
}
