package rpc

import (
	"sync"
	"sync/atomic"
	"time"
)

// routes knows the keys whose queues refuse nothing, as far as the last answers tell: a server whose queue has a MaxLength
// says so in its answers. A limit that somebody else has set, as an operator may by a policy, shows when a call is
// refused; so every second one call of a key is made with confirmations all the same.
type routes struct {
	known sync.Map // of *route, by key
	count atomic.Int64
}

// route is about one key. Both are times in nanoseconds.
type route struct {
	checkAt atomic.Int64 // the next call after that is one with confirmations
	limited atomic.Int64 // until then all are
}

const (
	checkEvery = time.Second
	limitedFor = time.Minute
	maxRoutes  = 10_000 // beyond it every call to a new key is one with confirmations
)

// plain reports whether a call now needs no confirmation.
func (r *routes) plain(key string, now time.Time) bool {
	v, ok := r.known.Load(key)
	if !ok {
		return false
	}
	to, at := v.(*route), now.UnixNano()
	if at < to.limited.Load() {
		return false
	}
	check := to.checkAt.Load()
	return at < check || !to.checkAt.CompareAndSwap(check, at+int64(checkEvery))
}

// answered learns from an answer to a call with confirmations whether the queue has a limit.
func (r *routes) answered(key string, limited bool, now time.Time) {
	if limited {
		r.refused(key, now)
		return
	}
	if to := r.of(key); to != nil {
		to.checkAt.Store(now.Add(checkEvery).UnixNano())
	}
}

// refused learns that the queue has one.
func (r *routes) refused(key string, now time.Time) {
	if to := r.of(key); to != nil {
		to.limited.Store(now.Add(limitedFor).UnixNano())
	}
}

// of returns the route of key, nil when there are too many.
func (r *routes) of(key string) *route {
	if v, ok := r.known.Load(key); ok {
		return v.(*route)
	}
	if r.count.Load() >= maxRoutes {
		return nil
	}
	v, loaded := r.known.LoadOrStore(key, new(route))
	if !loaded {
		r.count.Add(1)
	}
	return v.(*route)
}
