package reconnect

import (
	"context"
	"sync/atomic"
)

// gate counts who is inside and, once shut, lets nobody in and tells when the last has left. Passing it costs an atomic
// addition and a load: every publish does.
type gate struct {
	inside atomic.Int64
	isShut atomic.Bool
	left   chan struct{} // capacity 1: the last one left
}

func newGate() *gate { return &gate{left: make(chan struct{}, 1)} }

// enter reports whether the caller is in; it must leave then.
func (g *gate) enter() bool {
	g.inside.Add(1)
	if g.isShut.Load() {
		g.leave()
		return false
	}
	return true
}

func (g *gate) leave() {
	if g.inside.Add(-1) == 0 && g.isShut.Load() {
		select {
		case g.left <- struct{}{}:
		default:
		}
	}
}

// shut closes the gate and waits until nobody is inside, or until ctx ends; it returns how many there still are.
func (g *gate) shut(ctx context.Context) int64 {
	g.isShut.Store(true)
	for {
		if g.inside.Load() <= 0 {
			select {
			case g.left <- struct{}{}: // for others who wait, too
			default:
			}
			return 0
		}
		select {
		case <-g.left:
		case <-ctx.Done():
			return max(g.inside.Load(), 0)
		}
	}
}
