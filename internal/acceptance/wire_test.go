package acceptance

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/internal/testenv/messages"
	"github.com/warrenmq/warren/internal/wire"
)

// What package wire lets pass, the driver and a real broker must take: a mistake that gets through would end a channel or a
// connection that others use. These targets run their seeds in the suite, and more in make fuzz.

// line is a connection with the bare driver, and an own queue on it.
type line struct {
	conn  *amqp.Connection
	ch    *amqp.Channel
	queue string
	back  <-chan amqp.Delivery
}

func newLine(tb testing.TB) *line {
	tb.Helper()
	l := &line{conn: testenv.Shared(tb).Dial(tb), queue: testenv.Name(tb, "q")}
	var err error
	l.ch, err = l.conn.Channel()
	require.NoError(tb, err)
	require.NoError(tb, l.ch.Confirm(false))
	_, err = l.ch.QueueDeclare(l.queue, false, false, true, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeClassic})
	require.NoError(tb, err)
	require.NoError(tb, l.ch.ExchangeDeclare(l.queue, amqp.ExchangeDirect, false, false, false, false, nil))
	tb.Cleanup(func() { deleteExchange(tb, l.queue) })
	l.back, err = l.ch.Consume(l.queue, "", true, true, false, false, nil)
	require.NoError(tb, err)
	return l
}

func deleteExchange(tb testing.TB, name string) {
	tb.Helper()
	conn := testenv.Shared(tb).Dial(tb)
	defer conn.Close()
	ch, err := conn.Channel()
	require.NoError(tb, err)
	require.NoError(tb, ch.ExchangeDelete(name, false, false))
}

// whole returns l, or another line when a failure has ended that: so that the next input does not fail for it.
func (l *line) whole(tb testing.TB) *line {
	tb.Helper()
	if l.ch.IsClosed() {
		return newLine(tb)
	}
	return l
}

// echo publishes a message and returns it as it comes back.
func (l *line) echo(tb testing.TB, msg amqp.Publishing) amqp.Delivery {
	tb.Helper()
	confirm, err := l.ch.PublishWithDeferredConfirmWithContext(tb.Context(), "", l.queue, true, false, msg)
	require.NoError(tb, err)
	select {
	case d, ok := <-l.back:
		require.True(tb, ok, "the channel is lost")
		require.True(tb, confirm.Wait())
		return d
	case <-time.After(20 * time.Second):
		require.FailNow(tb, "it does not come back")
		panic("unreachable")
	}
}

// seeds are random ones, longer and longer, and what was found before.
func seeds(f *testing.F) {
	r := rand.New(rand.NewPCG(3, 4))
	for n := range 40 {
		seed := make([]byte, n*n)
		for i := range seed {
			seed[i] = byte(r.Uint32())
		}
		f.Add(seed)
	}
	f.Add(bytes.Repeat([]byte{255}, 2000))
	f.Add(append([]byte{2, 9, 4, 'a', 'b', 'c', 'd', 0, 0, 1, 1, 'n', 10}, 0x7f, 0xf8, 0, 0, 0, 0, 0, 1)) // NaN
	f.Add(append(append([]byte{2, 9}, make([]byte, 3)...), 1, 1, 'a', 16, 0, 0, 0, 0, 0, 0, 0x20, 0))     // 8192 elements
}

func FuzzBrokerTakesMessages(f *testing.F) {
	seeds(f)
	first := newLine(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		l := first.whole(t)
		g := messages.New(data)
		msg := g.Message()
		msg.Body = []byte(g.Text())
		msg.Expiration = "" // a message that expires does not come back
		if wire.Publishing("", l.queue, &msg, wire.Limits{}) != nil {
			return
		}
		if copies(msg.Headers) { // they are routed, to queues that are not ours
			return
		}
		d := l.echo(t, msg)
		require.Equal(t, string(msg.Body), string(d.Body))
		require.Equal(t, []string{msg.MessageId, msg.ContentType, msg.AppId}, []string{d.MessageId, d.ContentType, d.AppId})
		require.True(t, same(msg.Headers, d.Headers), "%#v came back as %#v", msg.Headers, d.Headers)
		back := wire.Copy(d)
		if err := wire.Publishing("", l.queue, &back, wire.Limits{}); err == nil {
			require.Equal(t, string(msg.Body), string(l.echo(t, back).Body), "and once more")
		}
	})
}

func copies(t amqp.Table) bool { return t["CC"] != nil || t["BCC"] != nil }

func FuzzBrokerTakesArguments(f *testing.F) {
	seeds(f)
	first := newLine(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		l := first.whole(t)
		g := messages.New(data)
		args, key := g.Table(), g.Text()
		if wire.Table("Arguments", args) != nil || wire.ShortString("Key", key) != nil {
			return
		}
		require.NoError(t, l.ch.QueueBind(l.queue, key, l.queue, false, args))
		require.NoError(t, l.ch.QueueUnbind(l.queue, key, l.queue, args))
		l.echo(t, amqp.Publishing{})
	})
}

func FuzzBrokerTakesNames(f *testing.F) {
	for _, name := range []string{"a", " ", "\x00", "ä", "a/b?c%2F", strings.Repeat("x", 255), "\u2028", "amqq", "{}", "'\"\\", "\x7f\x1b[31m"} {
		f.Add(name)
	}
	first := newLine(f)
	f.Fuzz(func(t *testing.T, name string) {
		l := first.whole(t)
		if len(name) > 0 && len(name) < 200 {
			name = fmt.Sprintf("%.8s.%s", l.queue[len(l.queue)-8:], name) // nobody else's
		}
		if wire.Name("Name", name) != nil {
			return
		}
		q, err := l.ch.QueueDeclare(name, false, false, true, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeClassic})
		require.NoError(t, err)
		require.Equal(t, name, q.Name)
		require.NoError(t, l.ch.QueueBind(name, name, l.queue, false, nil))
		_, err = l.ch.QueueDeclarePassive(name, false, false, true, false, nil)
		require.NoError(t, err)
		_, err = l.ch.QueueDelete(name, false, false, false)
		require.NoError(t, err)
		l.echo(t, amqp.Publishing{MessageId: name})
	})
}

// same reports whether a value that came back is the one that was sent, in whatever type the wire has for it.
func same(sent, back any) bool {
	switch s := sent.(type) {
	case nil:
		return back == nil
	case amqp.Table:
		b, ok := back.(amqp.Table)
		if !ok || len(s) != len(b) {
			return len(s) == 0 && len(b) == 0
		}
		for name, v := range s {
			got, there := b[name]
			if !there || !same(v, got) {
				return false
			}
		}
		return true
	case []any:
		b, _ := back.([]any)
		if len(s) != len(b) {
			return false
		}
		for i := range s {
			if !same(s[i], b[i]) {
				return false
			}
		}
		return true
	case []byte:
		return fmt.Sprintf("%s", back) == string(s)
	case time.Time:
		b, ok := back.(time.Time)
		return ok && b.Unix() == s.Unix()
	}
	return fmt.Sprint(sent) == fmt.Sprint(back)
}
