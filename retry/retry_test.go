package retry_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/retry"
	"github.com/warrenmq/warren/workqueue"
)

// always is more often than any message is tried.
const always = 1 << 30

func TestDelaysGrowUntilItSucceeds(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	v := newVisits()
	s.start(s.retrier(quick).Handle(v.failing(4)), workqueue.WorkerConfig{})
	s.publish(1)
	testenv.Eventually(t, patience, func() bool { return v.total() == 4 }, "four attempts")
	s.empty(quick)
	runs := v.of("0")
	for i, want := range []time.Duration{50, 100, 200} {
		want *= time.Millisecond
		gap := runs[i+1].at.Sub(runs[i].at)
		require.GreaterOrEqual(t, gap, want, "attempt %d came early", i+2)
		require.Equal(t, i+2, runs[i+1].Attempt)
		require.Equal(t, "the job 0 fails", runs[i+1].LastError)
		require.False(t, runs[i+1].FirstFailure.Before(runs[0].at))
		require.Equal(t, runs[1].FirstFailure, runs[i+1].FirstFailure)
		require.False(t, runs[i+1].LastFailure.Before(runs[i].at))
		t.Logf("attempt %d after %v, its delay is %v", i+2, gap.Round(time.Millisecond), want)
	}
	require.Equal(t, retry.Info{Attempt: 1}, runs[0].Info)
	require.Zero(t, s.depth(s.queue.DeadLetterQueue()))
}

func TestEndsInTheDeadLetterQueue(t *testing.T) {
	t.Parallel()
	once := retry.Policy{MaxAttempts: 1}
	twice := retry.Policy{MaxAttempts: 2, InitialDelay: 50 * time.Millisecond}
	boom := errors.New("boom")
	for name, tt := range map[string]struct {
		policy   retry.Policy
		handler  retry.Handler
		reason   string
		attempts int
		err      string
	}{
		"attempts used up": {twice, func(context.Context, amqp.Delivery) error { return boom }, "exhausted", 2, "boom"},
		"never again":      {once, func(context.Context, amqp.Delivery) error { return boom }, "exhausted", 1, "boom"},
		"permanent":        {twice, func(context.Context, amqp.Delivery) error { return retry.Permanent(boom) }, "permanent", 1, "boom"},
		"permanent, wrapped": {twice, func(context.Context, amqp.Delivery) error { return fmt.Errorf("charge: %w", retry.Permanent(boom)) },
			"permanent", 1, "charge: boom"},
		"permanent by behaviour": {twice, func(context.Context, amqp.Delivery) error { return &reconnect.TopologyError{Entity: "it"} },
			"permanent", 1, "reconnect: it"},
		"undecodable": {twice, workqueue.JSON(func(context.Context, int) error { return nil }), "undecodable", 1, "decode JSON as int"},
		"panic":       {twice, func(context.Context, amqp.Delivery) error { panic("boom") }, "panic", 2, "handler panicked: boom"},
		"too old": {retry.Policy{InitialDelay: 50 * time.Millisecond, Multiplier: 100, MaxAge: time.Second},
			func(context.Context, amqp.Delivery) error { return boom }, "too-old", 2, "boom"},
		"too old, by the error's own time": {retry.Policy{InitialDelay: 50 * time.Millisecond, MaxAge: time.Minute},
			func(context.Context, amqp.Delivery) error { return retry.After(boom, time.Hour) }, "too-old", 1, "boom"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSetup(t)
			s.start(s.retrier(tt.policy).Handle(tt.handler), workqueue.WorkerConfig{})
			x := s.exchange(amqp.ExchangeTopic, "orders.#")
			began := time.Now().Add(-time.Millisecond)
			s.raw(x, "orders.eu", amqp.Publishing{MessageId: "m", Body: []byte("body"), Headers: amqp.Table{"mine": "kept"}})
			d := s.drain(s.queue.DeadLetterQueue(), 1)[0]
			require.Equal(t, "body", string(d.Body))
			require.Equal(t, "m", d.MessageId)
			require.Equal(t, tt.reason, d.Headers["warren-reason"])
			require.Contains(t, d.Headers["warren-error"], tt.err)
			require.Equal(t, x, d.Headers["warren-exchange"])
			require.Equal(t, "orders.eu", d.Headers["warren-routing-key"])
			require.Contains(t, d.Headers["warren-consumer"], s.name)
			require.Equal(t, "kept", d.Headers["mine"])
			info := retry.InfoOf(d)
			require.Equal(t, tt.attempts, info.Attempt)
			require.True(t, info.FirstFailure.After(began) && info.LastFailure.Before(time.Now()), "%+v", info)
			require.False(t, info.LastFailure.Before(info.FirstFailure))
			s.empty(tt.policy)
		})
	}
}

// A13: failing and panicking messages among good ones.
func TestA13FailingAndPanickingAmongGoodOnes(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	v := newVisits()
	const n = 100
	h := func(_ context.Context, d amqp.Delivery) error {
		v.add(d)
		switch d.MessageId {
		case "17":
			return errors.New("always")
		case "42":
			panic("always")
		}
		return nil
	}
	stop := s.start(s.retrier(quick).Handle(h), workqueue.WorkerConfig{Concurrency: 2, Prefetch: 10})
	s.publish(n)
	dead := s.drain(s.queue.DeadLetterQueue(), 2)
	reasons := map[string]any{dead[0].MessageId: dead[0].Headers["warren-reason"], dead[1].MessageId: dead[1].Headers["warren-reason"]}
	require.Equal(t, map[string]any{"17": "exhausted", "42": "panic"}, reasons)
	testenv.Eventually(t, patience, func() bool { return v.distinct() == n }, "all handled")
	s.empty(quick)
	require.Equal(t, n-2+2*quick.MaxAttempts, v.total())
	require.NoError(t, stop())
}
