// Package report is what a supervisor and the code inside a supervised function tell each other without knowing each other:
// the code says what it is doing, for the supervisor's state, and the supervisor on which connection the code runs.
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

type linkKey struct{}

// WithLink returns a context of code that runs on the connection id, which is comparable and never used for another one.
func WithLink(ctx context.Context, id any) context.Context {
	return context.WithValue(ctx, linkKey{}, id)
}

// Link returns the connection on which the supervised function of ctx runs: equal for all channels of one connection,
// different after a reconnect. It is nil outside of a supervised function. What is private to a connection, an exclusive
// queue, is there as long as it stays the same.
func Link(ctx context.Context) any { return ctx.Value(linkKey{}) }
