package reconnect

import (
	"context"
	"errors"
	"slices"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"
)

// exchanges knows the exchanges that have been seen to exist. A publish to one that does not closes its channel, so the
// first publish to a name is preceded by a passive declare on a throw-away one. The zero value is ready.
type exchanges struct {
	mu     sync.RWMutex
	known  map[string]struct{}
	asking map[string]chan struct{} // closed when the answer is there
}

// maxKnown bounds the names; beyond it they are asked for again.
const maxKnown = 10_000

// knows reports whether the exchange was seen to exist. The default exchange always does.
func (e *exchanges) knows(name string) bool {
	if name == "" {
		return true
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	_, known := e.known[name]
	return known
}

func (e *exchanges) learn(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.known == nil || len(e.known) >= maxKnown {
		e.known = make(map[string]struct{})
	}
	e.known[name] = struct{}{}
}

func (e *exchanges) forget(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.known, name)
}

// ask finds out whether the exchange exists, for all who want to know at the time: one asks, and the others get errAgain
// once it has the answer. A missing one is the broker's *amqp.Error with code 404. The right to see it is not needed to
// publish to it, so any other refusal counts as a yes.
func (e *exchanges) ask(ctx context.Context, s *session, name string, refused *refusals) error {
	if s.declared.knows(name) {
		e.learn(name)
		return nil
	}
	mine, theirs := e.askOnce(name)
	if theirs != nil {
		select {
		case <-theirs:
			return errAgain
		case <-ctx.Done():
			return ended(ctx)
		}
	}
	defer e.answered(name, mine) // after the answer was noted
	err := s.onChannel(ctx, func(ch *amqp.Channel) error {
		return ch.ExchangeDeclarePassive(name, amqp.ExchangeDirect, true, false, false, false, nil) // the kind is not compared
	})
	var refusal *amqp.Error
	switch {
	case err == nil:
		e.learn(name)
		return nil
	case ctx.Err() != nil:
		return err
	case !errors.As(err, &refusal) || !refusal.Server || !slices.Contains(softCodes, refusal.Code):
		return openingError{err} // not an answer
	case refusal.Code == amqp.NotFound:
		refused.refuse(name, "", 0, refusal)
		return refusal
	}
	e.learn(name)
	return nil
}

// askOnce returns a channel to close after asking, or the channel of somebody who is asking.
func (e *exchanges) askOnce(name string) (mine, theirs chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if theirs := e.asking[name]; theirs != nil {
		return nil, theirs
	}
	if e.asking == nil {
		e.asking = make(map[string]chan struct{})
	}
	mine = make(chan struct{})
	e.asking[name] = mine
	return mine, nil
}

func (e *exchanges) answered(name string, mine chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.asking, name)
	close(mine)
}
