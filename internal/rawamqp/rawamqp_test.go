package rawamqp

import (
	"bufio"
	"bytes"
	"context"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/apart"
	"github.com/warrenmq/warren/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const patience = 30 * time.Second

// dial opens a Conn to the shared broker.
func dial(t *testing.T) *Conn {
	t.Helper()
	uri, err := amqp.ParseURI(testenv.Shared(t).URL())
	require.NoError(t, err)
	nc, err := net.DialTimeout("tcp", net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port)), patience)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	c, err := Open(ctx, apart.Socket{Conn: nc, Auth: uri.PlainAuth(), Vhost: uri.Vhost}, testenv.Name(t, "raw"))
	require.NoError(t, err)
	return c
}

// queue declares a classic queue, and puts messages into it with the driver.
func queue(t *testing.T, msgs ...amqp.Publishing) string {
	t.Helper()
	broker := testenv.Shared(t)
	name := testenv.Name(t, "raw")
	ch, err := broker.Dial(t).Channel()
	require.NoError(t, err)
	_, err = ch.QueueDeclare(name, true, false, false, false, amqp.Table{"x-queue-type": "classic"})
	require.NoError(t, err)
	t.Cleanup(func() { broker.DeleteQueue(t, name) })
	require.NoError(t, ch.Confirm(false))
	for _, msg := range msgs {
		confirm, err := ch.PublishWithDeferredConfirm("", name, true, false, msg)
		require.NoError(t, err)
		require.True(t, confirm.Wait())
	}
	return name
}

func nested(levels int) amqp.Table {
	t := amqp.Table{"end": "here"}
	for range levels - 1 {
		t = amqp.Table{"in": t}
	}
	return t
}

// The verdict is the driver's own: of each message it is the same as when the driver is sent it.
func TestJudgeIsTheDriver(t *testing.T) {
	t.Parallel()
	list := []any{"end"}
	for range 40 {
		list = []any{list}
	}
	for name, tt := range map[string]struct {
		msg  amqp.Publishing
		fine bool
	}{
		"empty":       {amqp.Publishing{}, true},
		"whole":       {amqp.Publishing{MessageId: "m", ContentType: "a", ContentEncoding: "b", CorrelationId: "c", ReplyTo: "d", Expiration: "60000", Type: "e", AppId: "f", Priority: 1, DeliveryMode: 2, Timestamp: time.Unix(1, 0), Headers: nested(3), Body: []byte("body")}, true},
		"large":       {amqp.Publishing{Body: bytes.Repeat([]byte("x"), 300_000), Headers: amqp.Table{"text": strings.Repeat("x", 120_000)}}, true},
		"32 levels":   {amqp.Publishing{Headers: nested(33)}, true},
		"33 levels":   {amqp.Publishing{MessageId: "m", Headers: nested(34), Body: []byte("body")}, false},
		"nested list": {amqp.Publishing{Headers: amqp.Table{"list": list}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			name := queue(t, tt.msg)
			c := dial(t)
			m, err := c.Get(name)
			require.NoError(t, err)
			require.NotNil(t, m)
			require.Equal(t, tt.msg.MessageId, m.ID)
			require.Equal(t, name, m.Key)
			require.EqualValues(t, len(tt.msg.Body), m.Size)
			verdict := Judge(t.Context(), m)
			require.NoError(t, c.Close())
			testenv.Eventually(t, patience, func() bool { return testenv.Shared(t).Queue(t, name).Ready == 1 }, "it is back")
			ch, err := testenv.Shared(t).Dial(t).Channel()
			require.NoError(t, err)
			_, _, err = ch.Get(name, true)
			require.Equal(t, tt.fine, err == nil, "the driver: %v", err)
			require.Equal(t, tt.fine, verdict == nil, "the verdict: %v", verdict)
		})
	}
}

func TestSettling(t *testing.T) {
	t.Parallel()
	name := queue(t, amqp.Publishing{MessageId: "a"}, amqp.Publishing{MessageId: "b"}, amqp.Publishing{MessageId: "c"})
	c := dial(t)
	var ms []*Message
	for range 3 {
		m, err := c.Get(name)
		require.NoError(t, err)
		require.False(t, m.Redelivered)
		ms = append(ms, m)
	}
	none, err := c.Get(name)
	require.NoError(t, err)
	require.Nil(t, none)
	require.NoError(t, c.Ack(ms[1]))
	require.NoError(t, c.Return(ms[2]))
	testenv.Eventually(t, patience, func() bool {
		n, err := c.Ready(name)
		require.NoError(t, err)
		return n == 1
	}, "one is ready again")
	back, err := c.Get(name)
	require.NoError(t, err)
	require.Equal(t, "c", back.ID)
	require.True(t, back.Redelivered)
	require.NoError(t, c.Close())
	testenv.Eventually(t, patience, func() bool { return testenv.Shared(t).Queue(t, name).Ready == 2 }, "two are left")
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	var refused *amqp.Error
	_, err := dial(t).Get("there is no such queue")
	require.ErrorAs(t, err, &refused)
	require.Equal(t, amqp.NotFound, refused.Code)

	uri, err := amqp.ParseURI(testenv.Shared(t).URL())
	require.NoError(t, err)
	open := func(auth amqp.Authentication, vhost string) error {
		nc, err := net.DialTimeout("tcp", net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port)), patience)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err = Open(ctx, apart.Socket{Conn: nc, Auth: auth, Vhost: vhost}, "raw")
		return err
	}
	require.ErrorAs(t, open(&amqp.PlainAuth{Username: "nobody", Password: "secret"}, uri.Vhost), &refused)
	require.Equal(t, amqp.AccessRefused, refused.Code)
	require.ErrorAs(t, open(uri.PlainAuth(), "there is no such vhost"), &refused)
	require.Equal(t, amqp.NotAllowed, refused.Code)
}

// A broker that says nothing holds nobody longer than the context.
func TestSilence(t *testing.T) {
	t.Parallel()
	ours, theirs := net.Pipe()
	defer theirs.Close()
	go func() { _, _ = bufio.NewReader(theirs).ReadByte() }()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := Open(ctx, apart.Socket{Conn: ours, Auth: &amqp.PlainAuth{}}, "raw")
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// Whatever bytes a message is made of, it can be looked at.
func FuzzMessage(f *testing.F) {
	f.Add([]byte("\x00\x3c\x00\x47\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x01q\x00\x00\x00\x00"),
		[]byte("\x00\x3c\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x20\x80\xff\xff\xff\xff\x01m"))
	f.Fuzz(func(t *testing.T, get, header []byte) {
		if len(get) < 4 {
			return
		}
		m := &Message{frames: []frame{{frameMethod, channel, get}, {frameHeader, channel, header}}}
		m.parse()
		_ = m.String()
	})
}

func FuzzFrame(f *testing.F) {
	f.Add(frame{frameBody, 1, []byte("body")}.bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, err := readFrame(bufio.NewReader(bytes.NewReader(b))); err == nil {
			require.Equal(t, b[:len(got.payload)+8], got.bytes())
		}
	})
}
