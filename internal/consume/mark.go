package consume

import "context"

type markKey struct{}

// mark is what a handler's context says of the loop it runs in.
type mark struct {
	queue   string
	ordered bool
}

// QueueOf returns the queue whose loop the handler of ctx runs in. ok is false outside of a loop.
func QueueOf(ctx context.Context) (queue string, ok bool) {
	m, ok := ctx.Value(markKey{}).(*mark)
	if !ok {
		return "", false
	}
	return m.queue, true
}

// Ordered says whether the handler of ctx runs in an ordered loop, where a message must not leave its place.
func Ordered(ctx context.Context) bool {
	m, ok := ctx.Value(markKey{}).(*mark)
	return ok && m.ordered
}
