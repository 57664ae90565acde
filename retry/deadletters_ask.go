package retry

import (
	"context"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// ready is the number of messages that wait in the queue.
func (r *reader) ready(ctx context.Context) (int, error) {
	return ready(ctx, func() (int, error) {
		q, err := r.inspect(ctx)
		return q.Messages, err
	})
}

func (r *reader) inspect(ctx context.Context) (q amqp.Queue, err error) {
	got := make(chan amqp.Queue, 1)
	err = call(ctx, func() error {
		q, err := r.ch.QueueDeclarePassive(r.queue, true, false, false, false, nil)
		got <- q
		return err
	})
	if err != nil {
		return amqp.Queue{}, err
	}
	return <-got, nil
}

// ready asks again when it is told that there are none: that is also what the broker says of a quorum queue that does not
// answer within 250 ms.
func ready(ctx context.Context, ask func() (int, error)) (n int, err error) {
	for range 4 {
		if n, err = ask(); n > 0 || err != nil {
			break
		}
		if err = pause(ctx, 5*time.Millisecond); err != nil {
			break
		}
	}
	return n, err
}

// answerWithin is how long a call may take after its context has ended. Usually the answer is on its way, and a channel that
// is closed while one is awaited may take it for that of the close, and wait for ever.
const answerWithin = time.Second

// call runs a call of the driver, which knows no context, and leaves it alone soon after ctx has ended: it ends with its channel.
func call(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	late := time.NewTimer(answerWithin)
	defer late.Stop()
	select {
	case err := <-done:
		if err != nil {
			return err
		}
	case <-late.C:
	}
	return context.Cause(ctx)
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
