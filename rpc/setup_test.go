package rpc_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/rpc"
)

func TestMain(m *testing.M) {
	if arg := os.Getenv(elsewhereEnv); arg != "" {
		if err := beElsewhere(arg); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testenv.Main(m)
}

// patience is how long a test waits for what must happen; far above what it takes.
const patience = 30 * time.Second

var quiet = testenv.Logger(io.Discard)

// setup is a request queue of its own, a Conn of its own for clients and one for servers.
type setup struct {
	t          *testing.T
	broker     *testenv.Broker
	url        string
	queue      string
	name       string // begins the names of both Conns
	clientConn *reconnect.Conn
	serverConn *reconnect.Conn
	clientName string
	serverName string
}

func newSetup(t *testing.T) *setup {
	t.Helper()
	broker := testenv.Shared(t)
	return newSetupOn(t, broker, broker.URL(), broker.URL())
}

// newSetupOn makes a setup whose clients and servers dial so.
func newSetupOn(t *testing.T, broker *testenv.Broker, clientURL, serverURL string) *setup {
	t.Helper()
	name := testenv.Name(t, "conn")
	s := &setup{t: t, broker: broker, url: serverURL, queue: testenv.Name(t, "requests"), name: name,
		clientName: name + "-client", serverName: name + "-server"}
	t.Cleanup(func() { broker.DeleteQueue(t, s.queue) })
	s.serverConn = s.dial(serverURL, reconnect.Config{Name: s.serverName})
	s.clientConn = s.dial(clientURL, reconnect.Config{Name: s.clientName})
	return s
}

// dial opens a Conn whose pauses are short, since the tests cut it more often than a link that fails should be dialed.
func (s *setup) dial(url string, cfg reconnect.Config) *reconnect.Conn {
	s.t.Helper()
	cfg.BackoffMin, cfg.BackoffMax = cmp.Or(cfg.BackoffMin, 10*time.Millisecond), cmp.Or(cfg.BackoffMax, 100*time.Millisecond)
	cfg.Heartbeat = cmp.Or(cfg.Heartbeat, 10*time.Second) // no test waits for one that is missed, and a slow machine must not miss one
	cfg.Logger = cmp.Or(cfg.Logger, quiet)
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	conn, err := reconnect.Dial(ctx, url, cfg)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { require.NoError(s.t, conn.Close(context.Background())) })
	return conn
}

func (s *setup) client(cfg rpc.ClientConfig) *rpc.Client {
	s.t.Helper()
	c, err := rpc.NewClient(s.clientConn, cfg)
	require.NoError(s.t, err)
	return c
}

// serve runs a server until the returned function is called, which waits for it and returns Run's error.
func (s *setup) serve(h rpc.Handler, cfg rpc.ServerConfig) (server *rpc.Server, stop func() error) {
	s.t.Helper()
	return s.serveOn(s.serverConn, h, cfg)
}

func (s *setup) serveOn(conn *reconnect.Conn, h rpc.Handler, cfg rpc.ServerConfig) (server *rpc.Server, stop func() error) {
	s.t.Helper()
	server, err := rpc.NewServer(conn, s.queue, h, cfg)
	require.NoError(s.t, err)
	return server, run(s.t, server)
}

func run(t *testing.T, server *rpc.Server) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(patience):
			return fmt.Errorf("Run did not return within %v", patience)
		}
	})
	t.Cleanup(func() { _ = stop() })
	select {
	case <-server.Ready():
	case err := <-done:
		require.NoError(t, err, "Run ended before it was ready")
	case <-time.After(patience):
		require.Fail(t, "server not ready in time")
	}
	return stop
}

// declare makes the request queue without a server.
func (s *setup) declare(cfg rpc.ServerConfig) {
	s.t.Helper()
	require.NoError(s.t, s.serverConn.Declare(s.t.Context(), cfg.Topology(s.queue)))
}

// call makes one call with its own bound.
func (s *setup) call(c *rpc.Client, body string, within time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), within)
	defer cancel()
	d, err := c.Call(ctx, s.queue, amqp.Publishing{Body: []byte(body)})
	return string(d.Body), err
}

// answers requires that calls are answered now.
func (s *setup) answers(c *rpc.Client, body, want string) {
	s.t.Helper()
	got, err := s.call(c, body, patience)
	require.NoError(s.t, err)
	require.Equal(s.t, want, got)
}

// links are the connections whose names begin so, without those that were made only to try something on: these are listed for a
// moment after they were closed.
func (s *setup) links(name string) map[int]string {
	s.t.Helper()
	of := map[int]string{}
	for _, c := range s.broker.Connections(s.t, name) {
		if !strings.HasSuffix(c.Name, "/apart") {
			of[c.PeerPort] = c.Name
		}
	}
	return of
}

// open makes both of a client's channels, of which the second one comes with the second call: what follows only has to send. The
// queue's server must answer.
func (s *setup) open(c *rpc.Client) {
	s.t.Helper()
	for range 2 {
		s.answers(c, "open", "open")
	}
}

// echo answers a request with itself.
func echo(_ context.Context, d amqp.Delivery) (amqp.Publishing, error) {
	return amqp.Publishing{Body: d.Body}, nil
}

// holding answers with the request, too, but only after release is closed. started gets a value for each that has begun.
func holding(started chan<- struct{}, release <-chan struct{}) rpc.Handler {
	return func(ctx context.Context, d amqp.Delivery) (amqp.Publishing, error) {
		started <- struct{}{}
		select {
		case <-release:
			return amqp.Publishing{Body: d.Body}, nil
		case <-ctx.Done():
			return amqp.Publishing{}, context.Cause(ctx)
		}
	}
}

// receive returns what comes from ch, and fails the test when nothing does in time.
func receive[T any](t *testing.T, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		require.FailNow(t, "not in time", what)
		panic("unreachable")
	}
}

// standstill is what a test allows a machine to stand still for. It is less than what any of the library's own bounds would add.
const standstill = 2 * time.Second

// took fails the test when more than three times the promised bound, and a standstill, have passed since began.
func took(t *testing.T, began time.Time, bound time.Duration, what string) {
	t.Helper()
	measured := time.Since(began)
	require.LessOrEqual(t, measured, 3*bound+standstill, "%s took %v, promised within %v", what, measured, bound)
	t.Logf("%s took %v, promised within %v", what, measured.Round(time.Millisecond), bound)
}

// rawChannel is a channel past the library.
func (s *setup) rawChannel() *amqp.Channel {
	s.t.Helper()
	ch, err := s.broker.Dial(s.t).Channel()
	require.NoError(s.t, err)
	return ch
}

// rawClient calls past the library, with whatever it likes.
type rawClient struct {
	*setup
	ch      *amqp.Channel
	replies <-chan amqp.Delivery
	returns chan amqp.Return
}

func (s *setup) rawClient() *rawClient {
	s.t.Helper()
	c := &rawClient{setup: s, ch: s.rawChannel()}
	var err error
	c.replies, err = c.ch.Consume("amq.rabbitmq.reply-to", "raw", true, false, false, false, nil)
	require.NoError(s.t, err)
	c.returns = c.ch.NotifyReturn(make(chan amqp.Return, 100))
	return c
}

// send sends a request to the queue, with the reply-to of this client unless it names another.
func (c *rawClient) send(msg amqp.Publishing) {
	c.t.Helper()
	msg.ReplyTo = cmp.Or(msg.ReplyTo, "amq.rabbitmq.reply-to")
	require.NoError(c.t, c.ch.Publish("", c.queue, true, false, msg))
}

// code is the code of an error reply.
func code(t *testing.T, d amqp.Delivery) string {
	t.Helper()
	var e struct{ Code string }
	require.NoError(t, json.Unmarshal(d.Body, &e))
	return e.Code
}
