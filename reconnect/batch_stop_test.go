package reconnect

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/leave"
	"github.com/warrenmq/warren/internal/testenv"
)

// stopping sends 30 messages to queue, ten at a time, and returns what stops that and what becomes of them.
func (p *pubTest) stopping(queue string) (stop func(), outcome <-chan BatchError) {
	p.t.Helper()
	life, end := context.WithCancel(p.t.Context())
	ended := make(chan BatchError, 1)
	go func() {
		var failed BatchError
		errors.As(p.p.PublishBatch(leave.With(p.t.Context(), life), numbered(queue, 0, 30)), &failed)
		ended <- failed
	}()
	return end, ended
}

// What was sent when the caller stops may be confirmed; nothing more is sent.
func TestPublishBatchWhoseCallerStops(t *testing.T) {
	t.Parallel()
	p, proxy, queue := proxied(t, PublisherConfig{Window: 10})
	proxy.FreezeToClient()
	stop, outcome := p.stopping(queue)
	testenv.Eventually(t, 10*time.Second, func() bool { return p.broker.Queue(t, queue).Ready == 10 }, "ten are out")
	stop()
	require.Never(t, func() bool { return len(outcome) > 0 }, 500*time.Millisecond, 50*time.Millisecond, "it waits for them")
	proxy.Heal()
	began := time.Now()
	failed := <-outcome
	took(t, began, time.Second, "the end")
	require.Len(t, failed, 30)
	for i, err := range failed {
		if i < 10 {
			assert.NoError(t, err)
			continue
		}
		assert.ErrorIs(t, err, context.Canceled)
		assert.NotErrorIs(t, err, ErrUnknown)
	}
	assert.Len(t, p.drain(queue), 10)
	assert.Zero(t, p.p.bytes.Load())
}

// What was sent on a connection that is lost is in doubt then, whether the caller stops before or after the loss.
func TestPublishBatchWhoseCallerStopsWithoutALink(t *testing.T) {
	t.Parallel()
	for _, first := range []string{"loss", "stop"} {
		t.Run(first, func(t *testing.T) {
			t.Parallel()
			p, proxy, queue := proxied(t, PublisherConfig{Window: 10})
			proxy.FreezeToClient()
			stop, outcome := p.stopping(queue)
			testenv.Eventually(t, 10*time.Second, func() bool { return p.broker.Queue(t, queue).Ready == 10 }, "ten are out")
			if first == "stop" {
				stop()
			}
			proxy.Refuse()
			proxy.Cut()
			if first == "loss" {
				require.Never(t, func() bool { return len(outcome) > 0 }, 500*time.Millisecond, 50*time.Millisecond, "it waits for a link")
				stop()
			}
			began := time.Now()
			failed := <-outcome
			took(t, began, time.Second, "the end")
			require.Len(t, failed, 30)
			for i, err := range failed {
				assert.ErrorIs(t, err, context.Canceled)
				assert.Equal(t, i < 10, errors.Is(err, ErrUnknown), "%d: %v", i, err)
			}
		})
	}
}

func TestClosing(t *testing.T) {
	t.Parallel()
	p, proxy, queue := proxied(t, PublisherConfig{})
	closing := p.p.Closing()
	proxy.Cut()
	require.NoError(t, p.publish("", queue, "after a cut"))
	select {
	case <-closing:
		t.Fatal("a loss is no end")
	default:
	}
	require.NoError(t, p.conn.Close(t.Context()))
	receive(t, closing, time.Second, "the end")
	require.ErrorIs(t, p.publish("", queue, "too late"), ErrClosed)
}
