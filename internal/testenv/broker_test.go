package testenv_test

import (
	"context"
	"errors"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

const patience = 10 * time.Second

// closed waits for a close notification and returns its error, nil for an orderly close.
func closed(t *testing.T, notify <-chan *amqp.Error) *amqp.Error {
	t.Helper()
	select {
	case err := <-notify:
		return err
	case <-time.After(patience):
		t.Fatal("no close notification")
		return nil
	}
}

func channel(t *testing.T, conn *amqp.Connection) *amqp.Channel {
	t.Helper()
	ch, err := conn.Channel()
	require.NoError(t, err)
	return ch
}

// declare makes a quorum queue that is gone when the test ends.
func declare(t *testing.T, b *testenv.Broker, ch *amqp.Channel) string {
	t.Helper()
	name := testenv.Name(t, "q")
	args := amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int32(20), "x-overflow": "reject-publish"}
	_, err := ch.QueueDeclare(name, true, false, false, false, args)
	require.NoError(t, err)
	t.Cleanup(func() { b.DeleteQueue(t, name) })
	return name
}

// publish publishes with a confirm and waits for it.
func publish(t *testing.T, ch *amqp.Channel, queue string, body []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	confirm, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", queue, false, false, amqp.Publishing{Body: body})
	require.NoError(t, err)
	acked, err := confirm.WaitContext(ctx)
	require.NoError(t, err)
	require.True(t, acked)
}

func TestCutConnections(t *testing.T) {
	b := testenv.Shared(t)
	mine := testenv.Name(t, "mine")
	cut := b.DialNamed(t, mine+"-1").NotifyClose(make(chan *amqp.Error, 1))
	alsoCut := b.DialNamed(t, mine+"-2").NotifyClose(make(chan *amqp.Error, 1))
	stays := b.DialNamed(t, testenv.Name(t, "other"))

	require.Equal(t, 2, b.CutConnections(t, mine))
	require.Equal(t, amqp.ConnectionForced, closed(t, cut).Code)
	require.Equal(t, amqp.ConnectionForced, closed(t, alsoCut).Code)
	channel(t, stays)
	require.Zero(t, b.CutConnections(t, mine+"-none"))
}

// The broker lists a connection and a channel when a process of its own comes to it, which may be after they are of use.
func TestConnectionsThatAreNotListedYet(t *testing.T) {
	b := testenv.Shared(t)
	name := testenv.Name(t, "conn")
	// It handles nothing for a while, as when thousands of channels have just ended.
	busy := func() {
		b.Eval(t, nil, "sys:suspend(pg_local), spawn(fun() -> timer:sleep(300), sys:resume(pg_local) end), ok.")
	}
	busy()
	conn := b.DialNamed(t, name)
	cut := conn.NotifyClose(make(chan *amqp.Error, 1))
	channel(t, conn)
	require.Equal(t, 1, b.CloseChannels(t, name))

	busy()
	late := b.DialNamed(t, name).NotifyClose(make(chan *amqp.Error, 1))
	require.Equal(t, 2, b.CutConnections(t, name))
	closed(t, cut)
	closed(t, late)
}

func TestCloseChannels(t *testing.T) {
	b := testenv.Shared(t)
	name := testenv.Name(t, "conn")
	conn := b.DialNamed(t, name)
	first, second := channel(t, conn), channel(t, conn)
	require.NoError(t, second.Confirm(false))
	closes := []chan *amqp.Error{
		first.NotifyClose(make(chan *amqp.Error, 1)),
		second.NotifyClose(make(chan *amqp.Error, 1)),
	}

	require.Equal(t, 2, b.CloseChannels(t, name))
	for _, c := range closes {
		err := closed(t, c)
		require.Equal(t, amqp.PreconditionFailed, err.Code)
		require.True(t, err.Server)
	}
	require.False(t, conn.IsClosed())
	channel(t, conn)
}

func TestConnections(t *testing.T) {
	b := testenv.Shared(t)
	name := testenv.Name(t, "conn")
	conn := b.DialNamed(t, name)
	ch := channel(t, conn)
	channel(t, conn)
	require.NoError(t, ch.Qos(7, 0, false))
	require.NoError(t, ch.Confirm(false))

	conns := b.Connections(t, name)
	require.Len(t, conns, 1)
	require.Equal(t, name, conns[0].Name)
	require.Equal(t, name, conns[0].Properties["connection_name"])
	require.Equal(t, "running", conns[0].State)
	require.Equal(t, 2, conns[0].Channels)
	require.Equal(t, 10, conns[0].Heartbeat)
	require.NotZero(t, conns[0].PeerPort)

	channels := b.Channels(t, name)
	require.Len(t, channels, 2)
	confirming := channels[0]
	if !confirming.Confirm {
		confirming = channels[1]
	}
	require.Equal(t, testenv.ChannelInfo{Connection: name, Number: 1, Prefetch: 7, Confirm: true}, confirming)
	require.Empty(t, b.Connections(t, testenv.Name(t, "none")))
}

func TestQueue(t *testing.T) {
	b := testenv.Shared(t)
	ch := channel(t, b.Dial(t))
	require.NoError(t, ch.Confirm(false))
	classic := testenv.Name(t, "classic")
	_, err := ch.QueueDeclare(classic, false, false, true, false, amqp.Table{"x-queue-type": "classic", "x-max-priority": int32(5)})
	require.NoError(t, err)
	quorum := declare(t, b, ch)

	for _, tt := range []struct {
		name string
		want testenv.QueueInfo
	}{
		{classic, testenv.QueueInfo{Type: "classic", Exclusive: true, Arguments: map[string]any{
			"x-queue-type": "classic", "x-max-priority": 5.0,
		}}},
		{quorum, testenv.QueueInfo{Type: "quorum", Durable: true, Arguments: map[string]any{
			"x-queue-type": "quorum", "x-delivery-limit": 20.0, "x-overflow": "reject-publish",
		}}},
	} {
		t.Run(tt.want.Type, func(t *testing.T) {
			for range 5 {
				publish(t, ch, tt.name, nil)
			}
			consumers := channel(t, b.Dial(t))
			require.NoError(t, consumers.Qos(2, 0, false))
			_, err := consumers.Consume(tt.name, "tag", false, false, false, false, nil)
			if tt.want.Exclusive {
				require.Error(t, err) // another connection's queue
				consumers = ch
				require.NoError(t, consumers.Qos(2, 0, false))
				_, err = consumers.Consume(tt.name, "tag", false, false, false, false, nil)
			}
			require.NoError(t, err)

			want := tt.want
			want.Exists, want.Ready, want.Unacked, want.Consumers = true, 3, 2, 1
			want.Details = []testenv.ConsumerInfo{{Tag: "tag", Prefetch: 2, Acks: true, Active: true, Status: "up"}}
			var got testenv.QueueInfo
			testenv.Eventually(t, patience, func() bool {
				got = b.Queue(t, tt.name)
				return got.Unacked == 2
			}, "two deliveries")
			require.Equal(t, want, got)
		})
	}
	require.Equal(t, testenv.QueueInfo{}, b.Queue(t, testenv.Name(t, "none")))
}

func TestUsers(t *testing.T) {
	b := testenv.Shared(t)
	name := testenv.Name(t, "user")
	first := b.AddUser(t, name, "one")
	_, err := amqp.Dial(first)
	require.Error(t, err, "no permission yet")

	b.SetPermissions(t, name, "", "^allowed", "")
	conn, err := amqp.Dial(first)
	require.NoError(t, err)
	defer conn.Close()
	ch := channel(t, conn)
	err = ch.ExchangeDeclare("forbidden", "direct", false, true, false, false, nil)
	var refused *amqp.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, amqp.AccessRefused, refused.Code)

	second := b.ChangePassword(t, name, "two")
	_, err = amqp.Dial(first)
	require.Error(t, err)
	other, err := amqp.Dial(second)
	require.NoError(t, err)
	defer other.Close()
	require.False(t, conn.IsClosed(), "a changed password closes nothing")

	gone := conn.NotifyClose(make(chan *amqp.Error, 1))
	b.DeleteUser(t, name)
	require.NotNil(t, closed(t, gone))
	b.DeleteUser(t, name)
}

func TestVersion(t *testing.T) {
	b := testenv.Shared(t)
	require.Regexp(t, `^\d+\.\d+\.\d+`, b.Version())
	require.True(t, b.AtLeast(3, 10))
	require.False(t, b.AtLeast(99, 0))
}

func TestName(t *testing.T) {
	t.Run("with/odd ä characters", func(t *testing.T) {
		a, b := testenv.Name(t, "p*#"), testenv.Name(t, "p*#")
		require.NotEqual(t, a, b)
		require.Regexp(t, `^p--\.TestName-[a-zA-Z0-9._-]+\.[0-9a-f]{8}$`, a)
		require.LessOrEqual(t, len(a), 100)
	})
}

// stopped is a testing.TB that notes a fatal failure and goes on.
type stopped struct {
	testing.TB
	failed bool
}

func (s *stopped) Helper()               {}
func (s *stopped) Fatalf(string, ...any) { s.failed = true; panic(errStopped) }

var errStopped = errors.New("stopped")

func TestEventually(t *testing.T) {
	calls := 0
	testenv.Eventually(t, patience, func() bool { calls++; return calls == 3 }, "third call")
	require.Equal(t, 3, calls)

	tb := &stopped{TB: t}
	require.PanicsWithValue(t, errStopped, func() {
		testenv.Eventually(tb, 20*time.Millisecond, func() bool { return false }, "never %d", 1)
	})
	require.True(t, tb.failed)
}

func TestNoLeaks(t *testing.T) {
	testenv.NoLeaks(t)
	channel(t, testenv.Shared(t).Dial(t))
}
