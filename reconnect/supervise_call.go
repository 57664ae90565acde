package reconnect

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/report"
)

// Why a channel is lost when no *amqp.Error says it.
var (
	errChannelLost       = errors.New("channel lost")
	errConsumerCancelled = errors.New("a consumer was cancelled by the broker: its queue was deleted or moved")
	errChannelClosed     = errors.New("channel closed by the function that ran on it")
)

// call runs fn on ch and says how that ended.
func (w *supervised) call(ctx context.Context, s *session, ch *amqp.Channel) error {
	fnCtx, end := context.WithCancelCause(ctx)
	defer end(nil)
	lost := make(chan error, 1)
	closed, cancelled := ch.NotifyClose(make(chan *amqp.Error, 1)), ch.NotifyCancel(make(chan string, 8))
	if !s.spawn(func() { lost <- watchChannel(closed, cancelled, end) }) {
		return ErrClosed
	}
	w.state(State{Phase: report.Running})
	began := time.Now()
	st, reporting := w.attend(fnCtx, s, end)
	err := w.protect(reporting, s, ch)
	held := time.Since(began)
	whole := !ch.IsClosed() && s.alive()
	if whole && !w.closeChannel(ctx, s, ch) {
		if st.moved(fnCtx, err) {
			return errMoved
		}
		return err // it is closed when the broker reads again
	}
	why := <-lost
	switch {
	case isPermanent(err):
		return err
	case why == nil && st.moved(fnCtx, err):
		return errMoved
	case !whole:
		return errLost{w.explain(why, s, err), held, err}
	case errors.Is(why, errConsumerCancelled):
		return errLost{why, held, err}
	}
	return err
}

// watchChannel ends the function's context when its channel is lost, and returns why it was once it is closed: nil when
// nothing but a close of our own happened.
func watchChannel(closed <-chan *amqp.Error, cancelled <-chan string, end context.CancelCauseFunc) (why error) {
	note := func(err error) {
		end(fmt.Errorf("%w: %w", errChannelLost, err))
		if why == nil {
			why = err
		}
	}
	for {
		select {
		case _, ok := <-cancelled:
			if ok {
				note(errConsumerCancelled)
			} else {
				cancelled = nil
			}
		case err, ok := <-closed:
			if ok {
				note(err)
				continue
			}
			if cancelled != nil {
				for range cancelled { // closed as well; what came before that counts
					note(errConsumerCancelled)
				}
			}
			end(fmt.Errorf("%w: %w", errChannelLost, errChannelClosed))
			return why
		}
	}
}

// explain says why a channel is lost on which the function returned err.
func (w *supervised) explain(why error, s *session, err error) error {
	switch {
	case why != nil:
	case !s.alive():
		why = fmt.Errorf("connection lost: %w", s.lossOr(amqp.ErrClosed))
	case err != nil:
		why = fmt.Errorf("%w: %w", errChannelClosed, err)
	default:
		why = errChannelClosed
	}
	return fmt.Errorf("%w: %w", errChannelLost, why)
}

// closeChannelWithin bounds the wait for the answer of a broker that lives to a channel's close; a dead one is noticed
// by its heartbeats.
const closeChannelWithin = 30 * time.Second

// closeChannel closes ch, and reports whether it is closed. When the broker does not answer, it drops the connection:
// otherwise the deliveries of the old channel would stay assigned to it. Only a broker that blocks us may take its time.
func (w *supervised) closeChannel(ctx context.Context, s *session, ch *amqp.Channel) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeChannelWithin)
	defer cancel()
	done := make(chan struct{})
	if !s.spawn(func() { defer close(done); _ = ch.Close() }) {
		return true // the link is closed, and its socket with it
	}
	if s.isBlocked() {
		return false
	}
	select {
	case <-done:
		return true
	case <-ctx.Done():
	}
	if s.isBlocked() {
		return false
	}
	s.sock.Kill()
	<-done
	return true
}

// protect runs fn and turns a panic into an error. When fn ends the goroutine (runtime.Goexit, as FailNow in a test does)
// nobody else closes the channel.
func (w *supervised) protect(ctx context.Context, s *session, ch *amqp.Channel) (err error) {
	returned := false
	defer func() {
		if p := recover(); p == nil && !returned {
			w.closeChannel(ctx, s, ch)
		} else if p != nil {
			w.log.Error("panic in a supervised function", "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("reconnect: supervise %q: panic: %v", w.name, p)
		}
	}()
	err = w.fn(ctx, ch)
	returned = true
	return err
}
