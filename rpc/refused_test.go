package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/rpc"
)

// A queue that is full refuses, and says so: whether its server has answered before or not, and also when it is not the
// server that has set the limit.
func TestFullQueueRefusesAtOnce(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		byPolicy bool
		before   int // calls answered
	}{"new client": {false, 0}, "known server": {false, 5}, "policy": {true, 5}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSetup(t)
			started, release := make(chan struct{}, 100), make(chan struct{})
			cfg := rpc.ServerConfig{MaxLength: 1}
			if tt.byPolicy {
				cfg.MaxLength = 0
				s.broker.Eval(t, nil, fmt.Sprintf(`rabbit_policy:set(<<"/">>, <<%[1]q>>, <<"^%[1]s$">>,
					[{<<"max-length">>, 1}, {<<"overflow">>, <<"reject-publish">>}], 0, <<"queues">>, <<"test">>), ok.`, s.queue))
				t.Cleanup(func() {
					s.broker.Eval(t, nil, fmt.Sprintf(`rabbit_policy:delete(<<"/">>, <<%q>>, <<"test">>), ok.`, s.queue))
				})
			}
			h := holding(started, release)
			s.serve(func(ctx context.Context, d amqp.Delivery) (amqp.Publishing, error) {
				if string(d.Body) == "quick" {
					return echo(ctx, d)
				}
				return h(ctx, d)
			}, cfg)
			c := s.client(rpc.ClientConfig{})
			for range tt.before {
				s.answers(c, "quick", "quick")
			}
			var wg sync.WaitGroup
			wg.Go(func() { s.answers(c, "handled", "handled") })
			receive(t, started, "a handler that is busy")
			wg.Go(func() { s.answers(c, "waits", "waits") })
			testenv.Eventually(t, patience, func() bool { return s.broker.Queue(t, s.queue).Ready == 1 }, "one waits")
			if tt.byPolicy { // found out within a second, by one of the calls
				testenv.Eventually(t, patience, func() bool {
					_, err := s.call(c, "too many", 500*time.Millisecond) // the first few may be dropped without a word
					return errors.Is(err, reconnect.ErrRefused)
				}, "a call that is refused")
			}
			for range 5 {
				began := time.Now()
				_, err := s.call(c, "too many", patience)
				took(t, began, 300*time.Millisecond, "the refusal")
				require.ErrorIs(t, err, reconnect.ErrRefused)
				require.NotErrorIs(t, err, reconnect.ErrUnknown)
			}
			close(release)
			wg.Wait()
			require.Zero(t, c.Pending())
		})
	}
}

// Requests that a stopping server has not started do not fit into a full queue any more. Their callers are told that, since
// nothing was executed; one that may be executed twice goes back all the same.
func TestHandedBackToAFullQueue(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	started, release := make(chan struct{}, 100), make(chan struct{})
	cfg := rpc.ServerConfig{MaxLength: 1, Prefetch: 5}
	_, stop := s.serve(holding(started, release), cfg)
	c := s.client(rpc.ClientConfig{})
	var wg sync.WaitGroup
	errs := make(chan error, 10)
	call := func(c *rpc.Client, body string) {
		wg.Go(func() {
			_, err := s.call(c, body, patience)
			errs <- err
		})
	}
	call(c, "handled")
	receive(t, started, "a handler that is busy")
	held := func(n int) {
		testenv.Eventually(t, patience, func() bool { return s.broker.Queue(t, s.queue).Unacked == n }, "%d with the server", n)
	}
	for i := range 3 {
		call(c, "held")
		held(i + 2)
	}
	call(c.Idempotent(), "held, to be repeated")
	held(5)
	call(c, "waits")
	testenv.Eventually(t, patience, func() bool { return s.broker.Queue(t, s.queue).Ready == 1 }, "one waits")

	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	for range 3 {
		err := receive(t, errs, "the end of a call")
		require.ErrorIs(t, err, reconnect.ErrRefused)
		require.NotErrorIs(t, err, reconnect.ErrUnknown)
	}
	close(release)
	require.NoError(t, receive(t, stopped, "the end of the server"))
	require.NoError(t, receive(t, errs, "the answer to what was begun"))
	s.serve(echo, cfg)
	wg.Wait()
	for range 2 {
		require.NoError(t, receive(t, errs, "the answer of the next server"))
	}
	require.Zero(t, c.Pending())
}
