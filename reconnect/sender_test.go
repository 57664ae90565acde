package reconnect

import (
	"context"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/report"
	"github.com/warrenmq/warren/internal/testenv"
)

// onSender runs f in a supervised function on the publishing link.
func onSender(t *testing.T, c *Conn, f func(ctx context.Context, ch *amqp.Channel, to report.Sender)) {
	t.Helper()
	err := c.SupervisePublishing(t.Context(), "sender", Topology{}, func(ctx context.Context, ch *amqp.Channel) error {
		f(ctx, ch, report.SenderOf(ctx))
		return nil
	})
	require.NoError(t, err)
}

// Who publishes by hand learns first whether the exchange is there, and what the broker did not take before.
func TestSenderOfWhoPublishesByHand(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	c, _ := dialed(t, b.URL(), Config{})
	exchange := testenv.Name(t, "exchange")
	t.Cleanup(func() {
		ch, err := b.Dial(t).Channel()
		require.NoError(t, err)
		require.NoError(t, ch.ExchangeDelete(exchange, false, false))
	})
	onSender(t, c, func(ctx context.Context, ch *amqp.Channel, to report.Sender) {
		require.True(t, to.Free("", "queue", nil))
		require.NoError(t, to.Wait(ctx, "", "queue", nil))

		require.False(t, to.Free(exchange, "key", nil))
		var missing *amqp.Error
		require.ErrorAs(t, to.Wait(ctx, exchange, "key", nil), &missing)
		require.Equal(t, amqp.NotFound, missing.Code)
		require.NoError(t, ch.ExchangeDeclare(exchange, amqp.ExchangeDirect, true, false, false, false, nil), "the channel is whole")
		require.NoError(t, to.Wait(ctx, exchange, "key", nil), "it is asked for again at once")
		require.True(t, to.Free(exchange, "key", nil))
		to.Refused(exchange, "key", nil, &amqp.Error{Code: amqp.NotFound, Server: true})
		require.False(t, to.Free(exchange, "key", nil))
		require.NoError(t, to.Wait(ctx, exchange, "key", nil))

		tooLarge := &amqp.Error{Code: amqp.PreconditionFailed, Server: true, Reason: "message size 10 is larger than configured max size 5"}
		to.Refused("", "queue", make([]byte, 10), tooLarge)
		require.True(t, to.Free("", "queue", make([]byte, 9)))
		require.False(t, to.Free("", "other", make([]byte, 10)))
		require.ErrorIs(t, to.Wait(ctx, "", "other", make([]byte, 11)), tooLarge)
	})
	require.True(t, report.SenderOf(t.Context()).Free("", "", nil), "outside of a supervised function")
}

// What might end the connection is tried on another one.
func TestSenderApart(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	c, _ := dialed(t, b.URL(), Config{})
	onSender(t, c, func(ctx context.Context, ch *amqp.Channel, to report.Sender) {
		require.NoError(t, to.Apart(ctx, func(*amqp.Channel) error { return nil }))
		var ended *amqp.Error
		err := to.Apart(ctx, func(other *amqp.Channel) error {
			require.NotSame(t, ch, other)
			_, err := other.Consume("queue\xff", "", true, false, false, false, nil) // not UTF-8: a syntax error
			return err
		})
		require.ErrorAs(t, err, &ended)
		require.True(t, ended.Server)
		require.False(t, ch.IsClosed())
		short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		late, answer := within(t, 20*time.Second), make(chan struct{})
		err = to.Apart(short, func(*amqp.Channel) error { // does not end with its context
			select {
			case <-answer:
			case <-late.Done():
			}
			return nil
		})
		close(answer)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
	testenv.Eventually(t, 10*time.Second, func() bool { return len(b.Connections(t, c.cfg.Name)) == 1 }, "no connection is left over")
}

// An alarm and a lost connection end the wait.
func TestSenderWaits(t *testing.T) {
	b := testenv.Node(t)
	c, _ := dialed(t, b.URL(), Config{})
	onSender(t, c, func(ctx context.Context, ch *amqp.Channel, to report.Sender) {
		b.Alarm(true)
		require.NoError(t, ch.Publish("", "nobody", false, false, amqp.Publishing{})) // makes the broker say so
		testenv.Eventually(t, 10*time.Second, func() bool { return !to.Free("", "queue", nil) }, "blocked")
		short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		err := to.Wait(short, "", "queue", nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, ErrBlocked)
		b.Alarm(false)
		require.NoError(t, to.Wait(ctx, "", "queue", nil))
	})
	gone := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := c.SupervisePublishing(ctx, "lost", Topology{}, func(fnCtx context.Context, ch *amqp.Channel) error {
		cutAll(t, b.Broker, c)
		<-fnCtx.Done()
		gone <- report.SenderOf(fnCtx).Wait(ctx, "exchange-that-is-asked-for", "", nil)
		cancel()
		return nil
	})
	require.NoError(t, err)
	require.ErrorIs(t, <-gone, report.ErrGone)
}
