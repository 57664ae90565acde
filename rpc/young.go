package rpc

import (
	"context"
	"sync/atomic"
	"time"
)

// young knows how long a server has been connected, since a broker that has only just started takes connections a moment
// before it counts itself among the nodes that run (20 to 60 ms on 3.10 and 4.0). In that moment it drops what is sent to a
// direct reply-to address, and 3.10 ends the connection over it. Times are in nanoseconds.
type young struct {
	joined atomic.Int64 // when a channel of ours was last opened
	left   atomic.Int64 // when one was last lost
	quiet  atomic.Int64 // until then nothing is answered
}

const (
	// awayFor is how long a broker is away at least when it restarts, and longer than a connection that is merely cut is.
	awayFor = 500 * time.Millisecond
	// settling is how long nothing is answered after that.
	settling = 300 * time.Millisecond
	// youngFor is how long a broker's opinion of an address is not taken for its last.
	youngFor = 2 * time.Second
)

// join notes that a channel was opened; the returned function that it was lost.
func (y *young) join() (leave func()) {
	now := time.Now().UnixNano()
	y.joined.Store(now)
	if left := y.left.Load(); left != 0 && now-left > int64(awayFor) {
		y.quiet.Store(now + int64(settling))
	}
	return func() { y.left.Store(time.Now().UnixNano()) }
}

// is reports whether the broker may have only just started.
func (y *young) is() bool { return time.Now().UnixNano()-y.joined.Load() < int64(youngFor) }

// settle waits until answers may be sent, or ctx ends.
func (y *young) settle(ctx context.Context) {
	if quiet := y.quiet.Load(); quiet != 0 {
		if d := time.Duration(quiet - time.Now().UnixNano()); d > 0 {
			sleep(ctx, d)
		}
	}
}
