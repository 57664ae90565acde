package workqueue_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

// A11: a slow handler outlives its connection. On the next one another message has the same tag. Whatever the late handler
// answers, it does not settle that one, which is what its own handler makes of it.
func TestA11StaleCompletion(t *testing.T) {
	for name, answer := range map[string]struct{ late, foreign error }{
		"late ack":    {late: nil, foreign: errors.New("no")},
		"late reject": {late: errors.New("no"), foreign: nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker, log := testenv.Shared(t), newLines()
			proxy := testenv.Proxy(t, broker.URL())
			s := newSetupWith(t, broker, proxy.URL(), workqueue.Queue{}, reconnect.Config{Logger: testenv.LoggerTo(log)})
			type call struct {
				d      amqp.Delivery
				answer chan error
			}
			calls := make(chan call, 10)
			s.start(s.conn, func(_ context.Context, d amqp.Delivery) error {
				c := call{d, make(chan error)}
				calls <- c
				return <-c.answer // it ignores the end of its context
			}, workqueue.WorkerConfig{})
			s.raw(amqp.Publishing{MessageId: "slow"})
			slow := receive(t, calls, "the slow message")

			proxy.Refuse() // so that the worker is away while another handles the message it had
			proxy.Cut()
			require.Equal(t, "slow", s.take(s.queue.Name, 1)[0].MessageId)
			s.raw(amqp.Publishing{MessageId: "foreign"})
			proxy.Heal()
			foreign := receive(t, calls, "the foreign message")
			require.Equal(t, "foreign", foreign.d.MessageId)
			require.Equal(t, slow.d.DeliveryTag, foreign.d.DeliveryTag, "tags begin anew")

			slow.answer <- answer.late
			testenv.Eventually(t, patience, func() bool { return log.count(staleSettle) == 1 }, "the late answer is counted as stale")
			require.Equal(t, 1, s.broker.Queue(t, s.queue.Name).Unacked, "the foreign message is still open")
			foreign.answer <- answer.foreign
			s.settled()
			if answer.foreign != nil {
				require.Equal(t, "foreign", s.take(s.queue.DeadLetterQueue(), 1)[0].MessageId)
			}
			require.Zero(t, s.depth(s.queue.DeadLetterQueue()))
			require.Empty(t, calls)
			require.Equal(t, 1, log.count(lostChannel), "no channel was lost but by the cut")
		})
	}
}

// P22: what is acknowledged after the channel was lost is counted, costs no channel and loses nothing.
func TestP22AckAfterTheReconnect(t *testing.T) {
	t.Parallel()
	const messages = 20
	log := newLines()
	broker := testenv.Shared(t)
	s := newSetupWith(t, broker, broker.URL(), workqueue.Queue{}, reconnect.Config{Logger: testenv.LoggerTo(log)})
	s.publish(messages)
	started, handled := make(chan struct{}), newRuns()
	causes := make(chan error, 1)
	again := make(chan struct{})
	s.start(s.conn, func(ctx context.Context, d amqp.Delivery) error {
		handled.add(d)
		switch {
		case d.MessageId != "0":
		case handled.of("0") == 1:
			close(started)
			<-ctx.Done()
			causes <- context.Cause(ctx)
			<-again // and works on, until the message has come again
		default:
			close(again)
		}
		return nil
	}, workqueue.WorkerConfig{Prefetch: messages})
	receive(t, started, "the slow message")
	s.broker.CutConnections(t, s.name+"/consuming")
	var cause *amqp.Error
	require.ErrorAs(t, receive(t, causes, "the end of the handler's context"), &cause)
	require.Equal(t, amqp.ConnectionForced, cause.Code)
	s.settled()
	testenv.Eventually(t, patience, func() bool { return log.count(staleSettle) == 1 }, "the late ack is counted")
	require.Equal(t, messages, handled.distinct())
	require.Equal(t, 2, handled.of("0"))
	require.Equal(t, messages+1, handled.total(), "the others were handled once")
	require.Equal(t, 1, log.count(lostChannel), "no channel was lost but by the cut")
	require.Zero(t, s.depth(s.queue.DeadLetterQueue()))
}

// P21: 8 workers, random durations, and handlers that settle by hand in every way there is: each message is handled once,
// and no channel is closed.
func TestP21HandSettles(t *testing.T) {
	t.Parallel()
	const concurrency, messages = 8, 1000
	s := newSetup(t, workqueue.Queue{})
	handled := newRuns()
	var harmful atomic.Int32 // by-hand settles that were not refused
	s.start(s.conn, func(ctx context.Context, d amqp.Delivery) error {
		handled.add(d)
		byHand := []func() error{
			func() error { return nil },
			func() error { return d.Ack(false) },
			func() error { return d.Ack(true) },
			func() error { return d.Nack(true, true) },
			func() error { return d.Reject(true) },
			func() error { return errors.Join(d.Ack(false), d.Ack(false), d.Reject(false)) },
		}
		if i := rand.IntN(len(byHand)); (byHand[i]() == nil) != (i == 0) {
			harmful.Add(1)
		}
		return work(ctx, time.Duration(rand.IntN(4000))*time.Microsecond)
	}, workqueue.WorkerConfig{Concurrency: concurrency, Prefetch: 10})
	before := consuming(t, s.conn, concurrency)
	s.publish(messages)
	s.settled()
	require.Equal(t, messages, handled.distinct())
	require.Equal(t, 1, handled.most())
	require.Zero(t, harmful.Load(), "settles by hand that the caller was not told of")
	require.Zero(t, s.depth(s.queue.DeadLetterQueue()))
	require.Equal(t, before, consuming(t, s.conn, concurrency), "all consume since the beginning: no channel was closed")
}
