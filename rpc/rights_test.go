package rpc_test

import (
	"context"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/rpc"
)

// as opens a Conn of a user with these rights.
func (s *setup) as(configure, write, read string) *reconnect.Conn {
	s.t.Helper()
	user := testenv.Name(s.t, "user")
	url := s.broker.AddUser(s.t, user, testenv.Secret())
	s.broker.SetPermissions(s.t, user, configure, write, read)
	return s.dial(url, reconnect.Config{Name: s.name + "-limited"})
}

// The rights that the package comment names are enough, to call by queue and by exchange.
func TestRights(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	exchange := testenv.Name(t, "exchange")
	t.Cleanup(func() { require.NoError(t, s.rawChannel().ExchangeDelete(exchange, false, false)) })
	serving := s.as("^("+s.queue+"|"+exchange+")$", "^("+s.queue+"|amq\\.default)$", "^("+s.queue+"|"+exchange+")$")
	s.serveOn(serving, echo, rpc.ServerConfig{Exchange: exchange, Keys: []string{"key"}})

	byQueue, err := rpc.NewClient(s.as("^$", "^amq\\.default$", "^$"), rpc.ClientConfig{NotifyCancel: true})
	require.NoError(t, err)
	s.answers(byQueue, "by queue", "by queue")
	byKey, err := rpc.NewClient(s.as("^$", "^"+exchange+"$", "^$"), rpc.ClientConfig{Exchange: exchange})
	require.NoError(t, err)
	d, err := byKey.Call(t.Context(), "key", amqp.Publishing{Body: []byte("by key")})
	require.NoError(t, err)
	require.Equal(t, "by key", string(d.Body))
}

// A caller who may not send is told so, at once when it is known already; a server that may not answer says so in its log.
func TestMissingRights(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	s.serve(echo, rpc.ServerConfig{})
	c, err := rpc.NewClient(s.as(".*", "^$", ".*"), rpc.ClientConfig{})
	require.NoError(t, err)
	for range 2 {
		var refusal *amqp.Error
		_, err = s.call(c, "x", patience)
		require.ErrorAs(t, err, &refusal)
		require.Equal(t, amqp.AccessRefused, refusal.Code)
		require.NotErrorIs(t, err, reconnect.ErrUnknown)
	}
	require.Zero(t, c.Pending())

	server, err := rpc.NewServer(s.as("^$", ".*", ".*"), testenv.Name(t, "other"), echo, rpc.ServerConfig{})
	require.NoError(t, err)
	var conflict *reconnect.TopologyError
	require.ErrorAs(t, server.Run(t.Context()), &conflict)
}

// A client that calls by exchange and may not write elsewhere cannot tell a server that a call was cancelled, which is no
// reason to lose the others.
func TestCancelWithoutTheRight(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	exchange := testenv.Name(t, "exchange")
	t.Cleanup(func() { require.NoError(t, s.rawChannel().ExchangeDelete(exchange, false, false)) })
	started, release := make(chan struct{}, 10), make(chan struct{})
	_, stop := s.serve(holding(started, release), rpc.ServerConfig{Exchange: exchange, Keys: []string{"key"}, Concurrency: 4})
	c, err := rpc.NewClient(s.as("^$", "^"+exchange+"$", "^$"), rpc.ClientConfig{Exchange: exchange, NotifyCancel: true})
	require.NoError(t, err)
	call := func(ctx context.Context) <-chan error {
		done := make(chan error, 1)
		go func() {
			_, err := c.Call(ctx, "key", amqp.Publishing{})
			done <- err
		}()
		receive(t, started, "the handler")
		return done
	}
	within, end := context.WithTimeout(t.Context(), patience)
	defer end()
	stays := call(within)
	for range 3 {
		ctx, cancel := context.WithCancel(within)
		done := call(ctx)
		cancel()
		require.ErrorIs(t, receive(t, done, "the cancelled call"), context.Canceled)
	}
	close(release)
	require.NoError(t, receive(t, stays, "the other one"))
	require.NoError(t, stop())
}
