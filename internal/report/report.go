// Package report lets the code that runs inside a supervised function say what it is doing, so that the supervisor can
// show it in its state without the two knowing each other.
package report

import "context"

// Phases of a supervised function, as reconnect.State shows them.
const (
	Starting  = "starting"
	Running   = "running"
	Consuming = "consuming"
	Waiting   = "waiting"
	Paused    = "paused"
)

type key struct{}

// With returns a context whose State calls reach fn. fn must be safe for concurrent use and must not block.
func With(ctx context.Context, fn func(phase, reason string)) context.Context {
	return context.WithValue(ctx, key{}, fn)
}

// State tells the supervisor of ctx, if there is one, the phase and the reason of it ("" when there is nothing to explain).
func State(ctx context.Context, phase, reason string) {
	if fn, ok := ctx.Value(key{}).(func(string, string)); ok {
		fn(phase, reason)
	}
}
