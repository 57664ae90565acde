// Package leave is how a caller of a reconnect.Publisher that stops for good, and the publisher, take leave of each other. It
// is no part of what either is for others: whoever calls PublishBatch can end its context.
package leave

import "context"

type (
	stopKey  struct{}
	wholeKey struct{}
)

// With returns a context for PublishBatch whose caller, once stop has ended, wants nothing more sent: what waits for its
// turn, or for a link, is given up, and what has been sent has until the end of ctx to be confirmed. What passes the context
// on to a PublishBatch passes that on, too.
func With(ctx, stop context.Context) context.Context { return context.WithValue(ctx, stopKey{}, stop) }

// Stop returns what is closed when nothing more is to be sent: nil, which never is, if ctx says nothing of that.
func Stop(ctx context.Context) <-chan struct{} {
	if stop, ok := ctx.Value(stopKey{}).(context.Context); ok {
		return stop.Done()
	}
	return nil
}

// ToSend returns a context for what comes before a message is sent: it ends when nothing more is to be sent, too.
func ToSend(ctx context.Context) (context.Context, context.CancelFunc) {
	stop, ok := ctx.Value(stopKey{}).(context.Context)
	if !ok {
		return ctx, func() {}
	}
	before, end := context.WithCancelCause(context.WithValue(ctx, wholeKey{}, ctx))
	unhook := context.AfterFunc(stop, func() { end(context.Cause(stop)) })
	return before, func() {
		unhook()
		end(nil)
	}
}

// Whole returns the context that ctx was made of by ToSend, for what comes after the sending; ctx itself if it was not.
func Whole(ctx context.Context) context.Context {
	if whole, ok := ctx.Value(wholeKey{}).(context.Context); ok {
		return whole
	}
	return ctx
}
