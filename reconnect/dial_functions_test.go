package reconnect

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// A provider that hangs when it is asked for the next secret is given up, and asked again.
func TestCredentialsThatHangWhenTheyAreRenewed(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	u, err := amqp.ParseURI(b.URL())
	require.NoError(t, err)
	var asked atomic.Int32
	c, log := dialed(t, b.URL(), Config{DialTimeout: 3 * time.Second, Credentials: func(ctx context.Context) (amqp.Authentication, time.Time, error) {
		auth := &amqp.PlainAuth{Username: u.Username, Password: u.Password}
		switch asked.Add(1) {
		case 1:
			return auth, time.Now().Add(time.Second), nil
		case 2:
			<-ctx.Done()
			return nil, time.Time{}, ctx.Err()
		}
		return auth, time.Time{}, nil
	}})
	testenv.Eventually(t, 20*time.Second, func() bool { return asked.Load() == 3 }, "asked again")
	require.Contains(t, log.String(), "refreshing credentials failed")
	require.NotContains(t, log.String(), "connection lost")
	require.NoError(t, c.Ping(within(t, 5*time.Second)))
}

// nonsense is an authentication of somebody's own.
type nonsense struct{}

func (nonsense) Mechanism() string { return "PLAIN" }
func (nonsense) Response() string  { panic("no answer") }

// What panics among the functions of the Config is an error of that dial, like any other; the program goes on.
func TestFunctionsOfTheConfigThatPanic(t *testing.T) {
	t.Parallel()
	plain := testenv.Shared(t).URL()
	amqps, roots, _ := tlsFront(t, plain)
	for name, tc := range map[string]struct {
		url  string
		cfg  func(oops func()) Config
		says string
	}{
		"Credentials": {plain, func(oops func()) Config {
			return Config{Credentials: func(context.Context) (amqp.Authentication, time.Time, error) {
				oops()
				u, err := amqp.ParseURI(plain)
				return u.PlainAuth(), time.Time{}, err
			}}
		}, "Credentials: panic: oops"},
		"TLSFunc": {amqps, func(oops func()) Config {
			return Config{TLSFunc: func(context.Context) (*tls.Config, error) { oops(); return &tls.Config{RootCAs: roots}, nil }}
		}, "panic: oops"},
		"a callback of TLS": {amqps, func(oops func()) Config {
			return Config{TLS: &tls.Config{RootCAs: roots, VerifyConnection: func(tls.ConnectionState) error { oops(); return nil }}}
		}, "panic: oops"},
		"DialContext": {plain, func(oops func()) Config {
			return Config{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				oops()
				return new(net.Dialer).DialContext(ctx, network, address)
			}}
		}, "DialContext: panic: oops"},
		"OnState": {plain, func(oops func()) Config { return Config{OnState: func(State) { oops() }} }, "oops"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int32
			c, log := dialed(t, tc.url, tc.cfg(func() {
				if calls.Add(1) == 1 {
					panic("oops")
				}
			}))
			require.NoError(t, c.Ping(within(t, 10*time.Second)))
			testenv.Eventually(t, 10*time.Second, func() bool { return strings.Contains(log.String(), tc.says) }, "logged")
			require.Contains(t, log.String(), "stack=")
		})
	}
	for name, auth := range map[string]amqp.Authentication{"an authentication that panics": nonsense{}, "none": (*amqp.PlainAuth)(nil)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, _ := testConfig(t, Config{Credentials: func(context.Context) (amqp.Authentication, time.Time, error) { return auth, time.Time{}, nil }})
			_, err := Dial(within(t, hiccup), plain, cfg)
			require.ErrorContains(t, err, "Credentials")
		})
	}
}

// foreign is an authentication of a type that nobody here knows.
type foreign struct{ response string }

func (foreign) Mechanism() string  { return "PLAIN" }
func (f foreign) Response() string { return f.response }

// Secrets of an authentication of somebody's own are renewed as well.
func TestSecretOf(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		auth   amqp.Authentication
		secret string
		has    bool
	}{
		"PLAIN":        {&amqp.PlainAuth{Username: "u", Password: "p\x00q"}, "p\x00q", true},
		"AMQPLAIN":     {&amqp.AMQPlainAuth{Username: "u", Password: "p"}, "p", true},
		"EXTERNAL":     {&amqp.ExternalAuth{}, "", false},
		"own PLAIN":    {foreign{"\x00u\x00p\x00q"}, "p\x00q", true},
		"own nonsense": {foreign{"u"}, "", false},
	} {
		secret, has := secretOf(tc.auth)
		require.Equal(t, tc.has, has, name)
		if has {
			require.Equal(t, tc.secret, secret, name)
		}
	}
}
