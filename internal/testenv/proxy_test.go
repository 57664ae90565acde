package testenv_test

import (
	"context"
	"io"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// quiet is how long nothing must happen for a test to believe that nothing will.
const quiet = 150 * time.Millisecond

// echo is a TCP server that sends back what it gets; it returns its URL.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(conn, conn)
			conn.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return "amqp://" + l.Addr().String() + "/"
}

// connect dials the proxy without any protocol on top.
func connect(t *testing.T, p *testenv.FaultProxy) net.Conn {
	t.Helper()
	u, err := amqp.ParseURI(p.URL())
	require.NoError(t, err)
	conn, err := net.Dial("tcp", net.JoinHostPort(u.Host, strconv.Itoa(u.Port)))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// reads reports whether n bytes come within the given time.
func reads(t *testing.T, conn net.Conn, n int, within time.Duration) bool {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(within)))
	_, err := io.ReadFull(conn, make([]byte, n))
	return err == nil
}

// proxied is a connection with a confirming channel through a proxy, and a queue.
type proxied struct {
	broker *testenv.Broker
	proxy  *testenv.FaultProxy
	conn   *amqp.Connection
	ch     *amqp.Channel
	queue  string
}

func throughProxy(t *testing.T) proxied {
	t.Helper()
	b := testenv.Shared(t)
	p := testenv.Proxy(t, b.URL())
	conn, err := amqp.Dial(p.URL())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) })
	ch := channel(t, conn)
	require.NoError(t, ch.Confirm(false))
	return proxied{broker: b, proxy: p, conn: conn, ch: ch, queue: declare(t, b, ch)}
}

func (p proxied) publish(t *testing.T) *amqp.DeferredConfirmation {
	t.Helper()
	confirm, err := p.ch.PublishWithDeferredConfirm("", p.queue, false, false, amqp.Publishing{})
	require.NoError(t, err)
	return confirm
}

// confirmed reports whether the confirm comes within the given time.
func confirmed(t *testing.T, c *amqp.DeferredConfirmation, within time.Duration) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	acked, err := c.WaitContext(ctx)
	return err == nil && acked
}

func TestProxyCut(t *testing.T) {
	p := throughProxy(t)
	lost := p.conn.NotifyClose(make(chan *amqp.Error, 1))
	require.Equal(t, 1, p.proxy.Connections())
	require.Equal(t, 1, p.proxy.Cut())
	require.NotEqual(t, amqp.ConnectionForced, closed(t, lost).Code, "nobody said goodbye")
	testenv.Eventually(t, patience, func() bool { return p.proxy.Connections() == 0 }, "the cut connection is gone")

	again, err := amqp.Dial(p.proxy.URL())
	require.NoError(t, err)
	require.NoError(t, again.Close())
}

func TestProxyRefuse(t *testing.T) {
	p := throughProxy(t)
	p.proxy.Refuse()
	_, err := amqp.Dial(p.proxy.URL())
	require.Error(t, err)
	publish(t, p.ch, p.queue, nil) // the open one is as it was

	p.proxy.Heal()
	again, err := amqp.Dial(p.proxy.URL())
	require.NoError(t, err)
	require.NoError(t, again.Close())
}

func TestProxyFreeze(t *testing.T) {
	p := throughProxy(t)
	p.proxy.Freeze()
	confirm := p.publish(t)
	require.False(t, confirmed(t, confirm, quiet))
	require.Zero(t, p.broker.Queue(t, p.queue).Ready)
	_, err := amqp.DialConfig(p.proxy.URL(), amqp.Config{Dial: amqp.DefaultDial(quiet)})
	require.Error(t, err, "new connections hang")
	require.False(t, p.conn.IsClosed())

	p.proxy.Heal()
	require.True(t, confirmed(t, confirm, patience))
	holdsOne(t, p.broker, p.queue)
}

func TestProxyFreezeToClient(t *testing.T) {
	p := throughProxy(t)
	p.proxy.FreezeToClient()
	confirm := p.publish(t)
	testenv.Eventually(t, patience, func() bool { return p.broker.Queue(t, p.queue).Ready == 1 }, "the message is enqueued")
	require.False(t, confirmed(t, confirm, quiet))

	p.proxy.Heal()
	require.True(t, confirmed(t, confirm, patience))
}

func TestProxyFreezeToBroker(t *testing.T) {
	p := throughProxy(t)
	deliveries, err := p.ch.Consume(p.queue, "", false, false, false, false, nil)
	require.NoError(t, err)
	p.proxy.FreezeToBroker()
	other := channel(t, p.broker.Dial(t))
	require.NoError(t, other.Confirm(false))
	publish(t, other, p.queue, nil)

	require.NoError(t, (<-deliveries).Ack(false))
	testenv.Eventually(t, patience, func() bool { return p.broker.Queue(t, p.queue).Unacked == 1 }, "delivered")
	never := time.Now().Add(quiet)
	testenv.Eventually(t, patience, func() bool {
		require.Equal(t, 1, p.broker.Queue(t, p.queue).Unacked, "the ack went through")
		return time.Now().After(never)
	}, "a while passed")

	p.proxy.Heal()
	testenv.Eventually(t, patience, func() bool { return p.broker.Queue(t, p.queue).Unacked == 0 }, "acked")
}

func TestProxyFrozenSideIsNotRead(t *testing.T) {
	p := testenv.Proxy(t, echo(t))
	conn := connect(t, p)
	p.Freeze()
	require.NoError(t, conn.SetWriteDeadline(time.Now().Add(2*quiet)))
	written, err := conn.Write(make([]byte, 64<<20))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "the sender is held up, %d bytes", written)
	require.False(t, reads(t, conn, 1, quiet))

	p.Heal()
	require.True(t, reads(t, conn, written, patience), "nothing was lost")
}

func TestProxySlow(t *testing.T) {
	p := testenv.Proxy(t, echo(t))
	conn := connect(t, p)
	p.Slow(100_000)
	start := time.Now()
	_, err := conn.Write(make([]byte, 40_000))
	require.NoError(t, err)
	require.True(t, reads(t, conn, 40_000, patience))
	require.GreaterOrEqual(t, time.Since(start), 350*time.Millisecond)
}

func TestProxyDelay(t *testing.T) {
	const each, size = 300 * time.Millisecond, 10_000 // one after the other they would take two seconds more than together
	p := testenv.Proxy(t, echo(t))
	conn := connect(t, p)
	p.Delay(each)
	start := time.Now()
	for range 10 { // together, not one after the other
		_, err := conn.Write(make([]byte, size))
		require.NoError(t, err)
	}
	require.True(t, reads(t, conn, 10*size, patience))
	require.GreaterOrEqual(t, time.Since(start), 2*each)
	require.Less(t, time.Since(start), 10*each)
}

func TestProxyPassesTheEndOn(t *testing.T) {
	p := testenv.Proxy(t, echo(t))
	conn := connect(t, p)
	_, err := conn.Write([]byte("last words"))
	require.NoError(t, err)
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(patience)))
	rest, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.Equal(t, "last words", string(rest))
	testenv.Eventually(t, patience, func() bool { return p.Connections() == 0 }, "the connection is gone")
}
