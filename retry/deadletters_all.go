package retry

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"

	amqp "github.com/rabbitmq/amqp091-go"
)

// All is a look at the dead letters, from the oldest on, which leaves them where they are: those that are ready when it
// begins. Each look counts in the queue, which can stand a million of them (see DeadLetters).
//
// It reads as the loop goes on, with a few megabytes in hand. What was shown stays with it until the loop ends, so meanwhile
// nobody else sees it. A loop that takes longer than the broker's consumer timeout (30 minutes by default) loses its
// channel. An error comes last, with a zero DeadLetter: ctx has ended, the channel was lost after something had been shown,
// one of the messages cannot be read (see SkipUnreadable), or the queue cannot be looked into.
func (l *DeadLetters) All(ctx context.Context) iter.Seq2[DeadLetter, error] {
	return func(yield func(DeadLetter, error) bool) {
		ctx, end := context.WithCancelCause(ctx)
		letters, done := make(chan DeadLetter), make(chan error, 1)
		go func() { done <- l.look(ctx, letters) }()
		ended := false
		defer func() {
			end(errEnough)
			if !ended { // but by the loop, in whatever way
				<-done
			}
		}()
		for {
			select {
			case letter := <-letters:
				if !yield(letter, nil) {
					return
				}
			case err := <-done:
				if ended = true; err != nil {
					yield(DeadLetter{}, l.failed("look at", err))
				}
				return
			}
		}
	}
}

// look sends each dead letter to letters, until ctx ends.
func (l *DeadLetters) look(ctx context.Context, letters chan<- DeadLetter) error {
	shown := 0
	return l.run(ctx, func(life context.Context, r *reader) error {
		if shown > 0 {
			return fmt.Errorf("the connection was lost after %d of them", shown)
		}
		if err := r.probe(life); err != nil {
			return err
		}
		show := func(d amqp.Delivery) error {
			select {
			case letters <- letterOf(d, l.queue).DeadLetter:
				shown++
			case <-r.stop:
			case <-life.Done():
				return context.Cause(life)
			}
			return nil
		}
		if r.first != nil {
			if err := show(*r.first); err != nil {
				return err
			}
		}
		for !closed(r.stop) {
			got, err := r.next(life, math.MaxInt)
			if err != nil {
				return err
			}
			if len(got) == 0 {
				break
			}
			for _, d := range got {
				r.hold(d)
				if r.isFirst(d) { // was shown
					continue
				}
				if err := show(d); err != nil {
					return err
				}
			}
		}
		return errors.Join(context.Cause(ctx), r.end(life))
	})
}
