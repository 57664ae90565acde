package exchange

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/report"
	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
)

func TestUsers(t *testing.T) {
	var u users
	require.Nil(t, u.free("a"))
	u.enter("a")
	u.enter("a")
	free := u.free("a")
	require.False(t, isClosed(free))
	u.leave("a")
	require.False(t, isClosed(free))
	u.leave("a")
	require.True(t, isClosed(free))
	require.Nil(t, u.free("a"))

	u.enter("a")
	free = u.free("a")
	u.enter("b") // whoever waited for a has nothing to wait for
	require.True(t, isClosed(free))
	require.Nil(t, u.free("a"))
	u.leave("a")
	require.NotNil(t, u.free("b"))
}

// Workers with connections of their own: the queue belongs to the first, and the next takes over when that one has left or
// is gone, each time with a fresh one and a gap.
func TestLiveApart(t *testing.T) {
	broker := testenv.Shared(t)
	conn, err := reconnect.Dial(t.Context(), broker.URL(), reconnect.Config{Name: testenv.Name(t, "conn"), Logger: testenv.Logger(io.Discard)})
	require.NoError(t, err)
	defer conn.Close(context.Background())
	gaps := 0
	l := newLive(conn, Subscription{Exchange: Exchange{Kind: "fanout", Name: "amq.fanout"}}, SubscriberConfig{OnGap: func(_, _ time.Time) { gaps++ }})

	type worker struct {
		conn  *amqp.Connection
		gone  chan struct{}
		leave chan struct{}
		ctx   context.Context
		state atomic.Value
	}
	hire := func() *worker {
		w := &worker{conn: broker.Dial(t), gone: make(chan struct{}), leave: make(chan struct{})}
		w.ctx = report.Under(t.Context(), &report.Supervisor{Connection: w.gone, Leave: w.leave, State: func(phase, _ string) { w.state.Store(phase) }})
		return w
	}
	channel := func(w *worker) *amqp.Channel {
		ch, err := w.conn.Channel()
		require.NoError(t, err)
		return ch
	}
	type opened struct {
		queue string
		shut  func()
		err   error
	}
	open := func(w *worker) <-chan opened {
		ch, result := channel(w), make(chan opened, 1)
		go func() {
			queue, shut, err := l.open(w.ctx, ch)
			result <- opened{queue, shut, err}
		}()
		return result
	}
	get := func(r <-chan opened) opened {
		t.Helper()
		select {
		case o := <-r:
			return o
		case <-time.After(30 * time.Second):
			require.FailNow(t, "not opened")
			return opened{}
		}
	}
	waits := func(r <-chan opened) {
		t.Helper()
		select {
		case <-r:
			require.FailNow(t, "opened beside another connection")
		case <-time.After(100 * time.Millisecond):
		}
	}

	a, b, c := hire(), hire(), hire()
	first, again := get(open(a)), get(open(a))
	require.NoError(t, first.err)
	require.Equal(t, first.queue, again.queue)
	fromB, fromC := open(b), open(c)
	waits(fromB)
	waits(fromC)
	close(c.leave)
	require.ErrorIs(t, get(fromC).err, errElsewhere)

	first.shut()
	waits(fromB)
	again.shut() // free, though its connection lives
	second := get(fromB)
	require.NoError(t, second.err)
	require.NotEqual(t, first.queue, second.queue)
	require.Equal(t, 1, gaps)

	fromA := open(a)
	waits(fromA)
	testenv.Eventually(t, 30*time.Second, func() bool { return a.state.Load() == report.Waiting }, "the state says that it waits")
	require.NoError(t, b.conn.Close())
	close(b.gone)
	third := get(fromA)
	require.NoError(t, third.err)
	require.Equal(t, 2, gaps)
	second.shut() // late, and of no consequence
	require.NotNil(t, l.users.free(third.queue))
	third.shut()
}

// A refusal that is about something else is a lost channel, and not a topology that a person has to mend.
func TestExplain(t *testing.T) {
	long := strings.Repeat("x", 230)
	for _, tt := range []struct {
		reason    string
		code      int
		server    bool
		permanent bool
	}{
		{"PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue 'q.live.1' in vhost '/'", 406, true, true},
		{"ACCESS_REFUSED - access to queue 'q.live.1' in vhost '/' refused for user 'u'", 403, true, true},
		{("ACCESS_REFUSED - access to exchange '" + long)[:255], 403, true, true},
		{"PRECONDITION_FAILED - unknown delivery tag 7", 406, true, false},
		{"NOT_FOUND - no exchange 'q.live.1' in vhost '/'", 404, true, false},
		{"PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue 'q.live.1' in vhost '/'", 406, false, false},
	} {
		err := explain(`queue "q.live.1"`, &amqp.Error{Code: tt.code, Reason: tt.reason, Server: tt.server}, "q.live.1", long)
		var refused *reconnect.TopologyError
		require.Equal(t, tt.permanent, errors.As(err, &refused), tt.reason)
		var cause *amqp.Error
		require.ErrorAs(t, err, &cause)
	}
}
