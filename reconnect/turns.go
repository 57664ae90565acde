package reconnect

import (
	"context"
	"sync"
)

// turns are locks by entity, whose wait ends with a context: one that the broker takes long over holds back nobody else.
type turns struct {
	mu sync.Mutex
	of map[entity]*turn
}

type turn struct {
	lock  chan struct{} // capacity 1
	users int           // who holds it or waits; the last one takes it away
}

func newTurns() *turns { return &turns{of: map[entity]*turn{}} }

// take waits for the caller's turn to see to an entity, and returns what ends it.
func (t *turns) take(ctx context.Context, e entity) (release func(), err error) {
	t.mu.Lock()
	mine := t.of[e]
	if mine == nil {
		mine = &turn{lock: make(chan struct{}, 1)}
		t.of[e] = mine
	}
	mine.users++
	t.mu.Unlock()
	select {
	case mine.lock <- struct{}{}:
		return func() { <-mine.lock; t.leave(e, mine) }, nil
	case <-ctx.Done():
		t.leave(e, mine)
		return nil, ended(ctx)
	}
}

func (t *turns) leave(e entity, mine *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if mine.users--; mine.users == 0 {
		delete(t.of, e)
	}
}
