package reconnect

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// tlsFront ends TLS in front of a broker, with a certificate for example.com and 127.0.0.1 that roots vouches for. seen
// is the server name that the last client asked for.
func tlsFront(t *testing.T, brokerURL string) (amqpsURL string, roots *x509.CertPool, seen *atomic.Value) {
	t.Helper()
	srv := httptest.NewTLSServer(nil) // for its certificate
	defer srv.Close()
	roots = x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	seen = &atomic.Value{}
	cfg := &tls.Config{Certificates: srv.TLS.Certificates, GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		seen.Store(hello.ServerName)
		return nil, nil
	}}
	target := hostOf(t, brokerURL)
	address := listener(t, func(nc net.Conn) {
		broker, err := net.Dial("tcp", target)
		if err != nil {
			return
		}
		defer broker.Close()
		secure := tls.Server(nc, cfg)
		go func() {
			_, _ = io.Copy(broker, secure)
			_ = broker.Close()
		}()
		_, _ = io.Copy(secure, broker)
	})
	u, err := url.Parse(brokerURL)
	require.NoError(t, err)
	u.Scheme, u.Host = "amqps", address
	return u.String(), roots, seen
}

func TestTLS(t *testing.T) {
	t.Parallel()
	amqps, roots, seen := tlsFront(t, testenv.Shared(t).URL())
	t.Run("trusted", func(t *testing.T) {
		cfg := &tls.Config{RootCAs: roots, ServerName: "example.com"}
		c, _ := dialed(t, amqps, Config{TLS: cfg})
		require.Equal(t, "example.com", seen.Load())
		require.NoError(t, c.Ping(within(t, 5*time.Second)))
		require.NoError(t, c.Declare(within(t, 5*time.Second), Topology{Queues: []Queue{{Name: testenv.Name(t, "q"), Exclusive: true}}}))
	})
	t.Run("the name of the host dialed", func(t *testing.T) {
		cfg := &tls.Config{RootCAs: roots}
		c, _ := dialed(t, amqps, Config{TLS: cfg})
		require.NoError(t, c.Ping(within(t, 5*time.Second)))
		require.Empty(t, cfg.ServerName, "the caller's configuration is not touched")
	})
	t.Run("asked anew at each dial", func(t *testing.T) {
		var asked atomic.Int32
		c, _ := dialed(t, amqps, Config{TLSFunc: func(context.Context) (*tls.Config, error) {
			asked.Add(1)
			return &tls.Config{RootCAs: roots}, nil
		}})
		_, err := c.Channel(within(t, 5*time.Second))
		require.NoError(t, err)
		require.EqualValues(t, 2, asked.Load())
	})
	for name, cfg := range map[string]Config{
		"unknown authority": {},
		"another name":      {TLS: &tls.Config{RootCAs: roots, ServerName: "example.org"}},
		"own verification":  {TLS: &tls.Config{RootCAs: roots, VerifyConnection: func(tls.ConnectionState) error { return errors.New("not the one that is known") }}},
		"own verification of the chain": {TLS: &tls.Config{RootCAs: roots,
			VerifyPeerCertificate: func([][]byte, [][]*x509.Certificate) error { return errors.New("not the one that is known") }}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, _ := testConfig(t, cfg)
			began := time.Now()
			_, err := Dial(within(t, 10*time.Second), amqps, cfg)
			took(t, began, time.Second, "refusing a certificate")
			var fault *tls.CertificateVerificationError
			require.ErrorAs(t, err, &fault)
		})
	}
	t.Run("own verification that agrees", func(t *testing.T) {
		c, _ := dialed(t, amqps, Config{TLS: &tls.Config{RootCAs: roots, VerifyConnection: func(tls.ConnectionState) error { return nil },
			VerifyPeerCertificate: func([][]byte, [][]*x509.Certificate) error { return nil }}})
		require.NoError(t, c.Ping(within(t, 5*time.Second)))
	})
	t.Run("a port without TLS", func(t *testing.T) {
		u, err := url.Parse(testenv.Shared(t).URL())
		require.NoError(t, err)
		u.Scheme = "amqps"
		cfg, _ := testConfig(t, Config{})
		_, err = Dial(within(t, 10*time.Second), u.String(), cfg)
		var fault tls.RecordHeaderError
		require.ErrorAs(t, err, &fault)
	})
}

// Each dial has a configuration of its own: otherwise the second host would be verified against the first one's name.
func TestTLSConfigIsOfTheDialsOwn(t *testing.T) {
	t.Parallel()
	given := &tls.Config{}
	d, err := newDialer("amqps://127.0.0.1/", Config{TLS: given}.withDefaults())
	require.NoError(t, err)
	for _, server := range []string{"one", "two"} {
		cfg, err := d.tlsConfig(t.Context(), server)
		require.NoError(t, err)
		require.Equal(t, server, cfg.ServerName)
		require.NotSame(t, given, cfg)
	}
	require.Empty(t, given.ServerName)

	d, err = newDialer("amqps://127.0.0.1/?server_name_indication=named", Config{}.withDefaults())
	require.NoError(t, err)
	cfg, err := d.tlsConfig(t.Context(), "one")
	require.NoError(t, err)
	require.Equal(t, "named", cfg.ServerName)
	require.EqualValues(t, tls.VersionTLS12, cfg.MinVersion)
}

func TestHostsAreTakenApart(t *testing.T) {
	t.Parallel()
	d, err := newDialer("amqp://a:1234/", Config{}.withDefaults())
	require.NoError(t, err)
	for host, want := range map[string][2]string{
		"b": {"b", "1234"}, "b:1": {"b", "1"}, "::1": {"::1", "1234"}, "[::1]": {"::1", "1234"}, "[::1]:2": {"::1", "2"},
	} {
		name, port := d.split(host)
		require.Equal(t, want, [2]string{name, port}, host)
	}
}

// A broker that demands a certificate says so in an alert, in TLS 1.3 after the client's handshake; Dial says it at once.
func TestTLSCertificateDemanded(t *testing.T) {
	t.Parallel()
	authority := testenv.NewAuthority(t)
	server := authority.Issue(testenv.Certificate{CommonName: "broker", Hosts: []string{"127.0.0.1"}})
	address := listener(t, func(nc net.Conn) {
		_ = tls.Server(nc, &tls.Config{Certificates: []tls.Certificate{server.TLS}, ClientAuth: tls.RequireAnyClientCert}).Handshake()
	})
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		cfg, log := testConfig(t, Config{TLS: &tls.Config{RootCAs: authority.Pool(), MaxVersion: version}})
		began := time.Now()
		_, err := Dial(within(t, 10*time.Second), "amqps://"+address+"/", cfg)
		took(t, began, time.Second, "refusing a client without a certificate")
		var alert tls.AlertError
		require.ErrorAs(t, err, &alert)
		require.ErrorContains(t, err, "refused by the broker: tls: ") // in TLS 1.2 no more than "handshake failure"
		require.NotContains(t, log.String(), "attempts=2")
	}
}
