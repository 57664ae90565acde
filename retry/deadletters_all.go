package retry

import (
	"context"
	"fmt"
	"iter"
	"math"
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
		letters, done, stop := make(chan DeadLetter), make(chan error, 1), make(chan struct{})
		go func() { done <- l.look(ctx, letters, stop) }()
		ended := false
		defer func() {
			if !ended { // by the loop, in whatever way
				close(stop)
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

// look sends each dead letter to letters, until stop is closed.
func (l *DeadLetters) look(ctx context.Context, letters chan<- DeadLetter, stop <-chan struct{}) error {
	shown := 0
	return l.run(ctx, func(life context.Context, r *reader) error {
		if shown > 0 {
			return fmt.Errorf("the connection was lost after %d of them", shown)
		}
		for !closed(stop) && !closed(r.stop) {
			got, err := r.next(life, math.MaxInt)
			if err != nil {
				return err
			}
			if len(got) == 0 {
				break
			}
			for _, d := range got {
				r.hold(d)
				select {
				case letters <- letterOf(d, l.queue).DeadLetter:
					shown++
				case <-stop:
				case <-r.stop:
				case <-life.Done():
					return context.Cause(life)
				}
			}
		}
		if err := r.putBack(life); err != nil {
			return err
		}
		return context.Cause(ctx)
	})
}
