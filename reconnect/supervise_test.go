package reconnect

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/report"
	"github.com/warrenmq/warren/internal/testenv"
)

// consumer is a supervised function that consumes a queue and acknowledges.
type consumer struct {
	queue     string
	exclusive bool
	consuming chan struct{} // each time it is
	got       chan string   // bodies
	runs      atomic.Int32
	cause     atomic.Value // of the last end of its context, as text
}

func newConsumer(queue string) *consumer {
	return &consumer{queue: queue, consuming: make(chan struct{}, 1000), got: make(chan string, 1000)}
}

func (c *consumer) run(ctx context.Context, ch *amqp.Channel) error {
	c.runs.Add(1)
	defer func() {
		if ctx.Err() != nil {
			c.cause.Store(context.Cause(ctx).Error())
		}
	}()
	if err := ch.Qos(10, 0, false); err != nil {
		return err
	}
	deliveries, err := ch.Consume(c.queue, "", false, c.exclusive, false, false, nil)
	if err != nil {
		return err
	}
	report.State(ctx, report.Consuming, "")
	c.consuming <- struct{}{}
	for {
		select {
		case d, ok := <-deliveries:
			if !ok {
				<-ctx.Done() // it says why
				return nil
			}
			c.got <- string(d.Body)
			if err := d.Ack(false); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// supervise runs fn until the test ends or stop is called; ended has its error.
func supervise(t *testing.T, c *Conn, name string, top Topology, fn func(context.Context, *amqp.Channel) error) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Supervise(ctx, name, top, fn) }()
	var once sync.Once
	var err error
	stop = func() error {
		once.Do(func() {
			cancel()
			err = receive(t, ended, 15*time.Second, "Supervise returns")
		})
		return err
	}
	t.Cleanup(func() { _ = stop() })
	return stop
}

func queueOf(name string) Topology { return Topology{Queues: []Queue{{Name: name}}} }

func publish(t *testing.T, ch *amqp.Channel, queue, body string) {
	t.Helper()
	require.NoError(t, ch.Publish("", queue, false, false, amqp.Publishing{Body: []byte(body)}))
}

// A5, without the restart: after each fault one consumer, and the next message is handled.
func TestA5SuperviseAfterEveryFault(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	c, _ := dialed(t, b.URL(), Config{})
	w := newConsumer(testenv.Name(t, "q"))
	stop := supervise(t, c, "worker", queueOf(w.queue), w.run)
	pub := raw(t, b)
	handles := func(what string, bound time.Duration, began time.Time) {
		t.Helper()
		receive(t, w.consuming, 10*time.Second, "consuming after "+what)
		took(t, began, bound, "consuming after "+what)
		publish(t, pub, w.queue, what)
		require.Equal(t, what, receive(t, w.got, 5*time.Second, "a message after "+what))
		testenv.Eventually(t, 5*time.Second, func() bool {
			q := b.Queue(t, w.queue)
			return q.Consumers == 1 && q.Ready+q.Unacked == 0
		}, "one consumer, and the acknowledgement has arrived, after %s", what)
		require.Equal(t, report.Consuming, phase(c, "worker"))
	}
	handles("the start", time.Second, time.Now())

	began := time.Now()
	require.Equal(t, 1, b.CloseChannels(t, c.Config().Name))
	handles("a closed channel", time.Second, began)
	require.Contains(t, w.cause.Load(), "channel lost: Exception (406)")

	began = time.Now()
	b.DeleteQueue(t, w.queue)
	handles("a deleted queue", time.Second, began)
	require.Contains(t, w.cause.Load(), "cancelled by the broker")

	for i := range 5 {
		began = time.Now()
		cutAll(t, b, c)
		handles(fmt.Sprintf("cut %d", i), 2*time.Second, began)
		require.Contains(t, w.cause.Load(), "channel lost: Exception (320)")
	}
	require.EqualValues(t, 8, w.runs.Load())
	require.NoError(t, stop())
	testenv.Eventually(t, 5*time.Second, func() bool { return b.Queue(t, w.queue).Consumers == 0 }, "no consumer is left")
	require.Empty(t, phase(c, "worker"), "it has no state any more")
	testenv.Eventually(t, 5*time.Second, func() bool { return len(b.Channels(t, c.Config().Name)) == 0 }, "no channel is left")
}

// P8: the queue is re-created by somebody with other arguments.
func TestP8SuperviseQueueRecreatedDifferently(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	c, _ := dialed(t, b.URL(), Config{BackoffMin: 300 * time.Millisecond})
	w := newConsumer(testenv.Name(t, "q"))
	ended := make(chan error, 1)
	go func() { ended <- c.Supervise(t.Context(), "worker", queueOf(w.queue), w.run) }()
	receive(t, w.consuming, 10*time.Second, "consuming")
	ch := raw(t, b)
	began := time.Now()
	_, err := ch.QueueDelete(w.queue, false, false, false)
	require.NoError(t, err)
	_, err = ch.QueueDeclare(w.queue, true, false, false, false, amqp.Table{"x-queue-type": "classic"})
	require.NoError(t, err)
	var fault *TopologyError
	require.ErrorAs(t, receive(t, ended, 10*time.Second, "the error"), &fault)
	took(t, began, time.Second, "the error about the queue made anew")
	require.Equal(t, []string{"x-queue-type", "quorum", "classic"}, []string{fault.Argument, fault.Wanted, fault.Existing})
}

// A7, P11: the error is typed and permanent, comes at once, after one attempt, and harms nobody.
func TestA7P11SuperviseOtherArguments(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	c, log := dialed(t, b.URL(), Config{})
	sibling := newConsumer(testenv.Name(t, "sibling"))
	supervise(t, c, "sibling", queueOf(sibling.queue), sibling.run)
	receive(t, sibling.consuming, 10*time.Second, "the sibling consumes")

	q := testenv.Name(t, "q")
	_, err := raw(t, b).QueueDeclare(q, true, false, false, false, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 7})
	require.NoError(t, err)
	ran := false
	began := time.Now()
	err = c.Supervise(within(t, 10*time.Second), "worker", Topology{Queues: []Queue{{Name: q, Arguments: amqp.Table{"x-delivery-limit": 20}}}},
		func(context.Context, *amqp.Channel) error { ran = true; return nil })
	took(t, began, time.Second, "the error about other arguments")
	var fault *TopologyError
	require.ErrorAs(t, err, &fault)
	require.Equal(t, []string{"x-delivery-limit", "20", "7"}, []string{fault.Argument, fault.Wanted, fault.Existing})
	require.True(t, isPermanent(err))
	require.False(t, ran)
	require.NotContains(t, log.String(), "running again", "one attempt")

	publish(t, raw(t, b), sibling.queue, "still there")
	require.Equal(t, "still there", receive(t, sibling.got, 5*time.Second, "the sibling's message"))
	require.EqualValues(t, 1, sibling.runs.Load())
}

// P6: the seat of an exclusive consumer is taken.
func TestP6SuperviseExclusiveSeat(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	c, _ := dialed(t, b.URL(), Config{BackoffMin: 100 * time.Millisecond, BackoffMax: 30 * time.Second})
	w := newConsumer(testenv.Name(t, "q"))
	w.exclusive = true
	top := Topology{Queues: []Queue{{Name: w.queue, Type: "classic"}}} // a quorum queue of 3.10 lets both in
	require.NoError(t, c.Declare(within(t, 10*time.Second), top))
	first := raw(t, b)
	_, err := first.Consume(w.queue, "first", false, true, false, false, nil)
	require.NoError(t, err)
	supervise(t, c, "second", top, w.run)
	began := time.Now()
	testenv.Eventually(t, 10*time.Second, func() bool { return time.Since(began) > 3*time.Second }, "time passes")
	require.GreaterOrEqual(t, w.runs.Load(), int32(3), "it asks again")
	require.LessOrEqual(t, w.runs.Load(), int32(8), "but not in a hot loop")
	testenv.Eventually(t, 5*time.Second, func() bool { // not in the moment in which it asks
		states, err := c.State(), c.Ping(within(t, 5*time.Second))
		last := states[len(states)-1]
		return last.Name == "second" && last.Attempts > 2 && strings.Contains(last.Reason, "403") &&
			err != nil && strings.Contains(err.Error(), "second: no channel: ")
	}, "the reason is visible")
	require.NoError(t, first.Cancel("first", false))
	receive(t, w.consuming, 30*time.Second, "the seat is taken over") // after a pause that has grown to some seconds
}

// P8: what somebody else has to make is waited for.
func TestP8SupervisePassiveMissing(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	c, _ := dialed(t, b.URL(), Config{})
	w := newConsumer(testenv.Name(t, "q"))
	supervise(t, c, "worker", Topology{Queues: []Queue{{Name: w.queue, Declare: Passive}}}, w.run)
	testenv.Eventually(t, 5*time.Second, func() bool {
		states := c.State()
		last := states[len(states)-1]
		return last.Name == "worker" && last.Attempts > 2 && strings.Contains(last.Reason, "404")
	}, "the state says what is missing")
	require.Zero(t, w.runs.Load())
	_, err := raw(t, b).QueueDeclare(w.queue, true, false, false, false, nil)
	require.NoError(t, err)
	receive(t, w.consuming, 5*time.Second, "consuming once it is there")
}

// halfDead is a connection of whose end the peer is not told.
type halfDead struct{ net.Conn }

func (c halfDead) Close() error { return c.SetDeadline(time.Unix(1, 0)) }

// P5, A4: an exclusive queue of a fixed name, which the broker holds for our own half-dead connection.
func TestA4P5SuperviseExclusiveQueueBehindAFrozenLink(t *testing.T) {
	t.Parallel()
	const heartbeat = time.Second
	b := testenv.Shared(t)
	dying := testenv.Proxy(t, b.URL())
	var target atomic.Value
	target.Store(hostOf(t, dying.URL()))
	c, log := dialed(t, b.URL(), Config{Heartbeat: heartbeat, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		address := target.Load().(string)
		nc, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil || address == hostOf(t, b.URL()) {
			return nc, err
		}
		t.Cleanup(func() { _ = nc.Close() })
		return halfDead{nc}, nil
	}})
	w := newConsumer(testenv.Name(t, "mine"))
	supervise(t, c, "worker", Topology{Queues: []Queue{{Name: w.queue, Exclusive: true}}}, w.run)
	receive(t, w.consuming, 10*time.Second, "consuming")
	dying.FreezeToClient() // the broker hears us until we give up, and takes as long again to notice
	target.Store(hostOf(t, b.URL()))
	began := time.Now()
	receive(t, w.consuming, 30*time.Second, "consuming again")
	took(t, began, 3*heartbeat+3*heartbeat, "our noticing, then the broker's, and an exclusive queue")
	require.Contains(t, log.String(), "RESOURCE_LOCKED")
	require.EqualValues(t, 2, w.runs.Load(), "it did not run without its queue")
	require.Less(t, strings.Count(log.String(), "running again"), 12, "only backoff in between")
	publish(t, raw(t, b), w.queue, "again")
	require.Equal(t, "again", receive(t, w.got, 5*time.Second, "a message"))
}

func TestSuperviseEnds(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	c, log := dialed(t, b.URL(), Config{})
	broken := errors.New("broken")
	for name, tc := range map[string]struct {
		fn   func(cancel func(), ctx context.Context, ch *amqp.Channel) error
		want error
		text string
	}{
		"nil":      {fn: func(func(), context.Context, *amqp.Channel) error { return nil }},
		"an error": {fn: func(func(), context.Context, *amqp.Channel) error { return broken }, want: broken},
		"a panic":  {fn: func(func(), context.Context, *amqp.Channel) error { panic("boom") }, text: `reconnect: supervise "worker": panic: boom`},
		"ctx ended": {fn: func(cancel func(), ctx context.Context, _ *amqp.Channel) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		}},
		"ctx, by nil": {fn: func(cancel func(), ctx context.Context, _ *amqp.Channel) error { cancel(); <-ctx.Done(); return nil }},
		"ctx, but an error of its own": {fn: func(cancel func(), ctx context.Context, _ *amqp.Channel) error { cancel(); return broken },
			want: broken},
		"ctx and channel ended, an error of its own": {fn: func(cancel func(), ctx context.Context, ch *amqp.Channel) error {
			cancel()
			_ = ch.Close()
			return broken
		}, want: broken},
		"ctx and channel ended": {fn: func(cancel func(), ctx context.Context, ch *amqp.Channel) error {
			cancel()
			_ = ch.Close()
			_, err := ch.QueueDeclarePassive("x", true, false, false, false, nil)
			return err
		}},
		"permanent, though the channel is lost": {fn: func(_ func(), _ context.Context, ch *amqp.Channel) error {
			_ = ch.Close()
			return fmt.Errorf("%w: %w", broken, &TopologyError{Entity: "e"})
		}, want: broken},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(within(t, 20*time.Second))
			defer cancel()
			runs := 0
			err := c.Supervise(ctx, "worker", Topology{}, func(ctx context.Context, ch *amqp.Channel) error {
				runs++
				return tc.fn(cancel, ctx, ch)
			})
			switch {
			case tc.want != nil:
				require.ErrorIs(t, err, tc.want)
			case tc.text != "":
				require.EqualError(t, err, tc.text)
			default:
				require.NoError(t, err)
			}
			require.Equal(t, 1, runs)
		})
	}
	require.Contains(t, log.String(), "panic in a supervised function")
	require.Contains(t, log.String(), "supervise_test.go", "with its stack")
	testenv.Eventually(t, 5*time.Second, func() bool { return len(b.Channels(t, c.Config().Name)) == 0 }, "no channel is left")
}

// An end with the channel lost is none: fn runs again.
func TestSuperviseRunsAgain(t *testing.T) {
	t.Parallel()
	c, _ := dialed(t, testenv.Shared(t).URL(), Config{})
	for name, lose := range map[string]func(ch *amqp.Channel) error{
		"closed, nil":      func(ch *amqp.Channel) error { _ = ch.Close(); return nil },
		"closed, an error": func(ch *amqp.Channel) error { _ = ch.Close(); return errors.New("x") },
		"refused": func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclarePassive("nowhere", true, false, false, false, nil)
			return err
		},
		"panic": func(ch *amqp.Channel) error { _ = ch.Close(); panic("boom") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runs := 0
			var last *amqp.Channel
			err := c.Supervise(within(t, 10*time.Second), name, Topology{}, func(ctx context.Context, ch *amqp.Channel) error {
				require.NotSame(t, last, ch)
				last = ch
				if runs++; runs < 4 {
					return lose(ch)
				}
				return nil
			})
			require.NoError(t, err)
			require.Equal(t, 4, runs)
		})
	}
}

// fn's context ends when its channel does, also when fn does not use it.
func TestSuperviseContextEndsWithTheChannel(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	c, _ := dialed(t, b.URL(), Config{})
	running, causes := make(chan *amqp.Channel, 10), make(chan error, 10)
	supervise(t, c, "worker", Topology{}, func(ctx context.Context, ch *amqp.Channel) error {
		running <- ch
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return nil
	})
	for _, end := range []struct {
		how  func(ch *amqp.Channel)
		code int
	}{
		{func(*amqp.Channel) { b.CutConnections(t, c.Config().Name+"/consuming") }, 320},
		{func(*amqp.Channel) { b.CloseChannels(t, c.Config().Name) }, 406},
		{func(ch *amqp.Channel) { _ = ch.Close() }, 0},
	} {
		ch := receive(t, running, 10*time.Second, "running")
		end.how(ch)
		cause := receive(t, causes, 10*time.Second, "the context ends")
		require.ErrorIs(t, cause, errChannelLost)
		require.Equal(t, end.code, amqpCode(cause))
	}
}

func TestSuperviseFaults(t *testing.T) {
	t.Parallel()
	cfg, _ := testConfig(t, Config{Lazy: true})
	c, err := Dial(t.Context(), "amqp://"+deadAddress(t)+"/", cfg)
	require.NoError(t, err)
	err = c.Supervise(t.Context(), "", Topology{Queues: []Queue{{}}}, nil)
	require.ErrorContains(t, err, `reconnect: supervise "": name: empty`)
	require.ErrorContains(t, err, "fn: nil")
	require.ErrorContains(t, err, `topology: queue "": Name: empty`)
	require.Empty(t, c.State(), "nothing was started")
	require.NoError(t, c.Close(t.Context()))
	nothing := func(context.Context, *amqp.Channel) error { return nil }
	require.ErrorIs(t, c.Supervise(t.Context(), "w", Topology{}, nothing), ErrClosed)
}

func TestSuperviseEndsWhileWaitingForTheLink(t *testing.T) {
	t.Parallel()
	cfg, _ := testConfig(t, Config{Lazy: true})
	c, err := Dial(t.Context(), "amqp://"+deadAddress(t)+"/", cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	nothing := func(context.Context, *amqp.Channel) error { return nil }
	go func() { ended <- c.Supervise(ctx, "w", Topology{}, nothing) }()
	testenv.Eventually(t, 5*time.Second, func() bool {
		err := c.Ping(t.Context())
		return err != nil && strings.Contains(err.Error(), "w: no channel: consuming link: not connected")
	}, "Ping says what is down")
	cancel()
	require.NoError(t, receive(t, ended, 5*time.Second, "the end with the context"))
	go func() { ended <- c.Supervise(t.Context(), "w", Topology{}, nothing) }()
	testenv.Eventually(t, 5*time.Second, func() bool { return phase(c, "w") != "" }, "waiting")
	began := time.Now()
	require.NoError(t, c.Close(t.Context()))
	require.ErrorIs(t, receive(t, ended, 5*time.Second, "the end with the Conn"), ErrClosed)
	took(t, began, 100*time.Millisecond, "Close during an outage")
}

// An exclusive queue that only a supervised function named is declared for as long as that runs.
func TestSuperviseLetsGoOfExclusiveQueues(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	c, _ := dialed(t, b.URL(), Config{})
	mine, shared := newConsumer(testenv.Name(t, "mine")), testenv.Name(t, "shared")
	declared := Topology{Queues: []Queue{{Name: shared, Exclusive: true}}}
	require.NoError(t, c.Declare(within(t, 10*time.Second), declared))
	stop := supervise(t, c, "worker", Topology{Queues: []Queue{{Name: mine.queue, Exclusive: true}, {Name: shared, Exclusive: true}}}, mine.run)
	receive(t, mine.consuming, 10*time.Second, "consuming")
	require.ElementsMatch(t, []string{mine.queue, shared}, names(c.registry.all()))
	c.Forget(Topology{Queues: []Queue{{Name: mine.queue, Exclusive: true}}})
	cutAll(t, b, c)
	receive(t, mine.consuming, 10*time.Second, "consuming again, since it declares what it needs")
	require.Equal(t, []string{shared}, names(c.registry.all()), "but what was forgotten is not remembered")
	require.NoError(t, stop())

	stop = supervise(t, c, "worker", Topology{Queues: []Queue{{Name: mine.queue, Exclusive: true}}}, mine.run)
	receive(t, mine.consuming, 10*time.Second, "consuming")
	require.NoError(t, stop())
	require.Equal(t, []string{shared}, names(c.registry.all()))
	cutAll(t, b, c)
	restored(t, c)
	require.False(t, b.Queue(t, mine.queue).Exists)
	furnished(t, c, c.consuming)
	require.True(t, b.Queue(t, shared).Exists)
}

// Each supervised function has a channel of its own: twenty of them twenty, and the fault of one is its own.
func TestSuperviseChannelsAreApart(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	c, _ := dialed(t, b.URL(), Config{})
	var workers []*consumer
	q := testenv.Name(t, "q")
	for i := range 20 {
		w := newConsumer(q)
		workers = append(workers, w)
		supervise(t, c, fmt.Sprint("worker ", i), queueOf(q), w.run)
	}
	for _, w := range workers {
		receive(t, w.consuming, 10*time.Second, "consuming")
	}
	testenv.Eventually(t, 10*time.Second, func() bool { // those on which queues were declared are closed, and the broker may still list some
		return len(b.Channels(t, c.Config().Name)) == 20 && len(b.Connections(t, c.Config().Name)) == 2
	}, "a channel each on one of two connections")
	err := c.Supervise(within(t, 10*time.Second), "guilty", Topology{}, func(ctx context.Context, ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive("nowhere", true, false, false, false, nil)
		return fmt.Errorf("%w: %w", err, &TopologyError{})
	})
	require.Error(t, err)
	for _, w := range workers {
		require.EqualValues(t, 1, w.runs.Load())
	}
}

// A function that ends its goroutine leaves no channel and no consumer behind.
func TestSuperviseFunctionThatExits(t *testing.T) {
	t.Parallel()
	broker := testenv.Shared(t)
	c, _ := dialed(t, broker.URL(), Config{})
	q := testenv.Name(t, "q")
	t.Cleanup(func() { broker.DeleteQueue(t, q) })
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			_ = c.Supervise(t.Context(), "w", Topology{Queues: []Queue{{Name: q}}}, func(ctx context.Context, ch *amqp.Channel) error {
				_, err := ch.Consume(q, "", false, false, false, false, nil)
				assert.NoError(t, err)
				runtime.Goexit()
				return nil
			})
		})
	}
	wg.Wait()
	testenv.Eventually(t, 5*time.Second, func() bool { return broker.Queue(t, q).Consumers == 0 }, "nobody consumes")
}
