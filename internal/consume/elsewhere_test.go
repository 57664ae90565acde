package consume

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/report"
)

// A supervisor first has the loop not consume here, then carefully, then go on elsewhere: it holds one message at a time
// until the handler of that has taken its time, which may be more than a stop would grant, and no message comes twice.
func TestGoesOnElsewhere(t *testing.T) {
	const n = 30
	r := newRig(t, nil)
	r.publish(0, n)
	var seen record
	started, release := make(chan context.Context, n), make(chan struct{})
	cfg := r.config(func(ctx context.Context, d amqp.Delivery) error {
		started <- ctx
		<-release
		seen.add(d)
		return nil
	})
	cfg.Prefetch, cfg.SlowStart, cfg.ShutdownTimeout = 10, true, 50*time.Millisecond
	leave, places := make(chan struct{}), []*report.Supervisor{}
	asked := make(chan string, 10)
	here := func(ok bool) func(string) bool {
		return func(queue string) bool { asked <- queue; return ok }
	}
	places = append(places, &report.Supervisor{Consumes: here(false)},
		&report.Supervisor{Consumes: here(true), Careful: true, Leave: leave}, &report.Supervisor{Consumes: here(true)})
	var calls atomic.Int32
	cfg.Supervise = func(ctx context.Context, name string, fn func(context.Context, *amqp.Channel) error) error {
		return r.link.Supervise(ctx, name, func(ctx context.Context, ch *amqp.Channel) error {
			call := int(calls.Add(1))
			err := fn(report.Under(ctx, places[min(call, len(places))-1]), ch)
			if call == 1 {
				require.NoError(t, err)
				require.NoError(t, ch.Close()) // so that the link calls again
			}
			return err
		})
	}
	l := start(t, cfg)
	ctx := <-started
	require.EqualValues(t, 2, calls.Load())
	r.eventually(func() bool { return r.broker.Queue(t, r.queue).Unacked == 1 }, "one message is held")
	close(leave)
	r.eventually(func() bool { return r.broker.Queue(t, r.queue).Consumers == 0 }, "nothing new is taken")
	select {
	case <-ctx.Done():
		require.Fail(t, "the handler's context has ended")
	case <-time.After(4 * cfg.ShutdownTimeout):
	}
	require.EqualValues(t, 2, calls.Load())
	close(release)
	r.eventually(func() bool { return seen.len() == n }, "all handled")
	require.EqualValues(t, 3, calls.Load())
	require.NoError(t, l.stop())
	require.ElementsMatch(t, ids(0, n), seen.all())
	for range 3 {
		require.Equal(t, r.queue, <-asked)
	}
}
