package reconnect

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// These have the broker enforce what F9 is about, with real OAuth 2 tokens.

// tokens are a provider's; the last of them is given again and again. asked counts.
func (b *tlsBroker) tokens(asked *atomic.Int32, next func(n int32) (token string, expires time.Time)) func(context.Context) (amqp.Authentication, time.Time, error) {
	return func(context.Context) (amqp.Authentication, time.Time, error) {
		token, expires := next(asked.Add(1))
		return &amqp.PlainAuth{Username: "token", Password: token}, expires, nil
	}
}

// tokenLife is long enough for a slow machine to dial within; the broker counts whole seconds.
const tokenLife = 4 * time.Second

// mayDeclare asks the broker on a channel that remembers nothing.
func mayDeclare(t *testing.T, c *Conn) error {
	t.Helper()
	topology := Topology{Queues: []Queue{{Name: testenv.Name(t, "q"), Exclusive: true}}}
	defer c.Forget(topology)
	return c.Declare(within(t, 10*time.Second), topology)
}

func testTokenIsRenewed(t *testing.T, b *tlsBroker) {
	var asked atomic.Int32
	var first time.Time
	c, log := dialed(t, b.with(t, nil, ""), Config{TLS: b.trusting(), Credentials: b.tokens(&asked, func(n int32) (string, time.Time) {
		expires := time.Now().Add(tokenLife)
		if n == 1 {
			first = expires
		}
		return b.Token("user", expires), expires
	})})
	require.NoError(t, mayDeclare(t, c))
	born, err := c.publishing.now()
	require.NoError(t, err)
	testenv.Eventually(t, 20*time.Second, func() bool { return time.Since(first) > time.Second }, "the first token has expired")
	// Not asked once: a renewal that is late, after a pause of the machine, is made up for; without one it is refused for good.
	testenv.Eventually(t, 10*time.Second, func() bool { return mayDeclare(t, c) == nil }, "with the next one")
	now, err := c.publishing.now()
	require.NoError(t, err)
	require.Same(t, born, now, "on the same connection")
	require.NotContains(t, log.String(), "lost")
}

// Without a refresh the broker refuses everything once the token has expired; up to 4.2.5 the connection stays.
func testTokenRunsOut(t *testing.T, b *tlsBroker) {
	var asked atomic.Int32
	expires := time.Now().Add(tokenLife)
	c, _ := dialed(t, b.with(t, nil, ""), Config{TLS: b.trusting(), Credentials: b.tokens(&asked, func(int32) (string, time.Time) {
		return b.Token("user", expires), time.Time{}
	})})
	require.NoError(t, mayDeclare(t, c))
	testenv.Eventually(t, 20*time.Second, func() bool { return time.Since(expires) > time.Second }, "the token has expired")
	err := mayDeclare(t, c)
	require.Equal(t, amqp.AccessRefused, amqpCode(err), "%v", err)
}

// A token that the broker refuses in the middle ends the connection; the next dial asks for another one, and all goes on.
func testTokenIsRefused(t *testing.T, b *tlsBroker) {
	var asked atomic.Int32
	c, log := dialed(t, b.with(t, nil, ""), Config{TLS: b.trusting(), Credentials: b.tokens(&asked, func(n int32) (string, time.Time) {
		expires := time.Now().Add(2 * tokenLife)
		if n == 2 {
			return testenv.Secret(), expires
		}
		if n == 1 {
			return b.Token("user", expires), time.Now().Add(tokenLife / 4) // ask again soon
		}
		return b.Token("user", expires), expires
	})})
	testenv.Eventually(t, 20*time.Second, func() bool { return asked.Load() > 2 && c.Ping(t.Context()) == nil }, "connected with another token")
	require.NoError(t, mayDeclare(t, c))
	require.Contains(t, log.String(), "connection lost")
	require.NotContains(t, log.String(), "s3cr3t")
}
