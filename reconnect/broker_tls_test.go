package reconnect

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// tlsBroker is a real broker with TLS on, and those who vouch for it and for its clients.
type tlsBroker struct {
	*testenv.TLSNode
	authority *testenv.Authority
	server    testenv.Issued
}

// TestTLSBroker is all that is tried on one broker with TLS on. Some parts replace the broker's certificate and give it back, so
// they run one after the other, and before those that only wait.
func TestTLSBroker(t *testing.T) {
	t.Parallel()
	authority := testenv.NewAuthority(t)
	server := authority.Issue(testenv.Certificate{CommonName: "broker", Hosts: []string{"127.0.0.1", "broker.test"}})
	b := &tlsBroker{testenv.TLS(t, authority, server), authority, server}
	for _, part := range []struct {
		name  string
		waits bool
		test  func(*testing.T, *tlsBroker)
	}{
		{"private authority", false, testTLSPrivateAuthority},
		{"files of the URL", false, testTLSFilesOfTheURL},
		{"client certificate", false, testTLSClientCertificate},
		{"EXTERNAL", true, testTLSExternal},
		{"refused at once", false, testTLSRefusedAtOnce},
		{"without TLS", false, testTLSWithoutTLS},
		{"renewed between dials", false, testTLSRenewedBetweenDials},
		{"client certificate runs out", false, testTLSClientCertificateRunsOut},
		{"gathered writes", false, testTLSGathersWrites},
		{"frozen", true, testTLSFrozen},
		{"token renewed before it expires", true, testTokenIsRenewed},
		{"token not renewed", true, testTokenRunsOut},
		{"token refused while connected", true, testTokenIsRefused},
	} {
		t.Run(part.name, func(t *testing.T) {
			if part.waits {
				t.Parallel()
			}
			part.test(t, b)
		})
	}
}

// trusting is what a client needs to trust the broker.
func (b *tlsBroker) trusting(certificates ...testenv.Issued) *tls.Config {
	cfg := &tls.Config{RootCAs: b.authority.Pool()}
	for _, c := range certificates {
		cfg.Certificates = append(cfg.Certificates, c.TLS)
	}
	return cfg
}

// with returns the broker's address with another user, nil for none, and query.
func (b *tlsBroker) with(t *testing.T, user *url.Userinfo, query string) string {
	t.Helper()
	u, err := url.Parse(b.TLSURL())
	require.NoError(t, err)
	u.User, u.RawQuery = user, query
	return u.String()
}

// subjects are the certificates that the broker has seen of a Conn's links.
func (b *tlsBroker) subjects(t *testing.T, c *Conn) []string {
	t.Helper()
	var users, subjects []string
	for _, info := range b.Connections(t, c.Config().Name+"/") {
		users = append(users, info.User)
		subjects = append(subjects, info.Certificate)
	}
	require.NotEmpty(t, users)
	return subjects
}

// roundTrip takes messages through both links and an exclusive queue.
func roundTrip(t *testing.T, c *Conn, bodies ...string) {
	t.Helper()
	queue := Queue{Name: testenv.Name(t, "q"), Exclusive: true}
	require.NoError(t, c.Declare(within(t, 10*time.Second), Topology{Queues: []Queue{queue}}))
	defer c.Forget(Topology{Queues: []Queue{queue}})
	p, err := c.NewPublisher(PublisherConfig{})
	require.NoError(t, err)
	var msgs []Message
	for _, body := range bodies {
		msgs = append(msgs, Message{Key: queue.Name, Publishing: amqp.Publishing{Body: []byte(body)}})
	}
	require.NoError(t, p.PublishBatch(within(t, 20*time.Second), msgs))
	ch, err := c.Channel(within(t, 5*time.Second))
	require.NoError(t, err)
	defer ch.Close()
	deliveries, err := ch.Consume(queue.Name, "", true, false, false, false, nil)
	require.NoError(t, err)
	for _, body := range bodies {
		d := receive(t, deliveries, 10*time.Second, "a delivery")
		require.Equal(t, body, string(d.Body))
	}
}

func testTLSPrivateAuthority(t *testing.T, b *tlsBroker) {
	for name, cfg := range map[string]*tls.Config{
		"TLS 1.2":      {RootCAs: b.authority.Pool(), MaxVersion: tls.VersionTLS12},
		"newest":       {RootCAs: b.authority.Pool()},
		"another name": {RootCAs: b.authority.Pool(), ServerName: "broker.test"},
	} {
		c, log := dialed(t, b.TLSURL(), Config{TLS: cfg})
		roundTrip(t, c, "one", string(make([]byte, 1<<20)), "three")
		require.Equal(t, 2, b.CutConnections(t, c.Config().Name+"/"), name)
		roundTrip(t, c, "after a loss")
		require.NotContains(t, log.String(), "certificate", name)
	}
}

func testTLSFilesOfTheURL(t *testing.T, b *tlsBroker) {
	client := b.authority.Issue(testenv.Certificate{CommonName: "from files"})
	dir := t.TempDir()
	query := url.Values{}
	for parameter, pem := range map[string]string{"cacertfile": b.authority.PEM(), "certfile": client.Cert, "keyfile": client.Key} {
		path := filepath.Join(dir, parameter)
		require.NoError(t, os.WriteFile(path, []byte(pem), 0o600))
		query.Set(parameter, path)
	}
	query.Set("server_name_indication", "broker.test")
	admin, err := url.Parse(b.TLSURL())
	require.NoError(t, err)
	c, _ := dialed(t, b.with(t, admin.User, query.Encode()), Config{})
	require.NoError(t, c.Ping(within(t, 5*time.Second)))
	require.Equal(t, []string{"CN=from files"}, b.subjects(t, c))
}

func testTLSClientCertificate(t *testing.T, b *tlsBroker) {
	c, _ := dialed(t, b.TLSURL(), Config{TLS: b.trusting(b.authority.Issue(testenv.Certificate{CommonName: "client"}))})
	roundTrip(t, c, "one")
	require.Equal(t, []string{"CN=client", "CN=client"}, b.subjects(t, c), "both links show it")
}

// F10: the certificate is the user.
func testTLSExternal(t *testing.T, b *tlsBroker) {
	user := testenv.Name(t, "user")
	b.AddUser(t, user, testenv.Secret())
	b.SetPermissions(t, user, ".*", ".*", ".*")
	known := b.trusting(b.authority.Issue(testenv.Certificate{CommonName: user}))
	external := func(context.Context) (amqp.Authentication, time.Time, error) {
		return &amqp.ExternalAuth{}, time.Time{}, nil
	}
	for name, tc := range map[string]struct {
		url string
		cfg Config
	}{
		"by the URL":      {b.with(t, nil, "auth_mechanism=external"), Config{TLS: known}},
		"by the provider": {b.with(t, nil, ""), Config{TLS: known, Credentials: external}},
	} {
		c, _ := dialed(t, tc.url, tc.cfg)
		roundTrip(t, c, name)
		for _, info := range b.Connections(t, c.Config().Name+"/") {
			require.Equal(t, user, info.User, name)
		}
	}
	for name, cfg := range map[string]*tls.Config{
		"a name nobody has": b.trusting(b.authority.Issue(testenv.Certificate{CommonName: "nobody"})),
		"no certificate":    b.trusting(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, _ := testConfig(t, Config{TLS: cfg})
			began := time.Now()
			_, err := Dial(within(t, 30*time.Second), b.with(t, nil, "auth_mechanism=external"), cfg)
			took(t, began, 3500*time.Millisecond, "refusing a certificate as a user") // RabbitMQ waits 3 s
			require.Equal(t, amqp.AccessRefused, amqpCode(err), "%v", err)
		})
	}
}

// Whatever is wrong with a certificate, Dial says it at the first attempt, and in words that name it.
func testTLSRefusedAtOnce(t *testing.T, b *tlsBroker) {
	strangers := testenv.NewAuthority(t)
	issue := func(cn string, expired bool) testenv.Issued {
		return b.authority.Issue(testenv.Certificate{CommonName: cn, Hosts: []string{"127.0.0.1"}, Expired: expired})
	}
	elsewhere := b.authority.Issue(testenv.Certificate{CommonName: "broker", Hosts: []string{"elsewhere.test", "127.0.0.9"}})
	early := b.authority.Issue(testenv.Certificate{CommonName: "broker", Hosts: []string{"127.0.0.1"}, Early: true})
	unknown := strangers.Issue(testenv.Certificate{CommonName: "client"})
	old := func(cfg *tls.Config) *tls.Config {
		cfg.MaxVersion = tls.VersionTLS12
		return cfg
	}
	verification, alert := func(err error) bool { return is[*tls.CertificateVerificationError](err) }, func(err error) bool { return is[tls.AlertError](err) }
	defer b.Show(b.authority, b.server)
	for _, tc := range []struct {
		name   string
		server testenv.Issued
		client *tls.Config
		says   string
		is     func(error) bool
	}{
		{"broker of another name", elsewhere, b.trusting(), "127.0.0.9", verification},
		{"broker with an expired certificate", issue("broker", true), b.trusting(), "expired", verification},
		{"broker with a certificate that is not yet valid", early, b.trusting(), "is before", verification},
		{"broker with a stranger's certificate", strangers.Issue(testenv.Certificate{CommonName: "broker", Hosts: []string{"127.0.0.1"}}), b.trusting(), "unknown authority", verification},
		{"broker of an unknown authority", b.server, &tls.Config{}, "unknown authority", verification},
		{"client of an unknown authority", b.server, b.trusting(unknown), "unknown certificate authority", alert},
		{"client of an unknown authority, TLS 1.2", b.server, old(b.trusting(unknown)), "unknown certificate authority", alert},
		{"client with an expired certificate", b.server, b.trusting(issue("client", true)), "expired certificate", alert},
		{"client with an expired certificate, TLS 1.2", b.server, old(b.trusting(issue("client", true))), "expired certificate", alert},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b.Show(b.authority, tc.server)
			cfg, log := testConfig(t, Config{TLS: tc.client})
			began := time.Now()
			_, err := Dial(within(t, 30*time.Second), b.TLSURL(), cfg)
			took(t, began, time.Second, "refusing a certificate")
			require.ErrorContains(t, err, tc.says)
			require.True(t, tc.is(err), "%#v", err)
			require.NotContains(t, err.Error(), "Exception")
			require.Contains(t, log.String(), "attempts=1")
			require.NotContains(t, log.String(), "attempts=2")
		})
	}
}

// A client without TLS on the port for TLS is told so, and not that frames are too large.
func testTLSWithoutTLS(t *testing.T, b *tlsBroker) {
	cfg, log := testConfig(t, Config{})
	began := time.Now()
	_, err := Dial(within(t, 30*time.Second), strings.Replace(b.TLSURL(), "amqps:", "amqp:", 1), cfg)
	took(t, began, time.Second, "refusing a client without TLS")
	require.ErrorContains(t, err, "has to begin with amqps")
	require.NotContains(t, log.String(), "attempts=2")
}

// is reports whether there is a T in the chain.
func is[T error](err error) bool {
	var target T
	return errors.As(err, &target)
}

// The broker's certificate is replaced, and its authority, too. Connections stay; the next dial is refused, and the state says
// why, until TLSFunc knows the new authority.
func testTLSRenewedBetweenDials(t *testing.T, b *tlsBroker) {
	var roots atomic.Pointer[x509.CertPool]
	roots.Store(b.authority.Pool())
	c, _ := dialed(t, b.TLSURL(), Config{BackoffMax: 200 * time.Millisecond, TLSFunc: func(context.Context) (*tls.Config, error) {
		return &tls.Config{RootCAs: roots.Load()}, nil
	}})
	roundTrip(t, c, "before")
	next := testenv.NewAuthority(t)
	b.Show(next, next.Issue(testenv.Certificate{CommonName: "broker", Hosts: []string{"127.0.0.1"}}))
	defer b.Show(b.authority, b.server)
	roundTrip(t, c, "on the connections there are")

	require.Equal(t, 2, b.CutConnections(t, c.Config().Name+"/"))
	testenv.Eventually(t, 10*time.Second, func() bool {
		return phase(c, "publishing") == phaseConnecting && reasonHas(c, "publishing", "unknown authority")
	}, "the state says what it is")
	roots.Store(next.Pool())
	began := time.Now()
	testenv.Eventually(t, 10*time.Second, func() bool { return c.Ping(t.Context()) == nil }, "connected with the new one")
	took(t, began, time.Second, "recovering through TLSFunc")
	roundTrip(t, c, "after")
}

// The client's certificate runs out while it is connected; the broker refuses it at the next dial, which in TLS 1.3 the
// client learns only after its handshake. TLSFunc brings the next one.
func testTLSClientCertificateRunsOut(t *testing.T, b *tlsBroker) {
	var shown atomic.Pointer[tls.Config]
	shown.Store(b.trusting(b.authority.Issue(testenv.Certificate{CommonName: "first"})))
	c, log := dialed(t, b.TLSURL(), Config{BackoffMax: 200 * time.Millisecond, TLSFunc: func(context.Context) (*tls.Config, error) {
		return shown.Load(), nil
	}})
	require.Equal(t, []string{"CN=first"}, b.subjects(t, c))
	shown.Store(b.trusting(b.authority.Issue(testenv.Certificate{CommonName: "first", Expired: true})))
	require.Equal(t, 1, b.CutConnections(t, c.Config().Name+"/"))
	testenv.Eventually(t, 10*time.Second, func() bool { return reasonHas(c, "publishing", "expired certificate") }, "the state says what it is")
	shown.Store(b.trusting(b.authority.Issue(testenv.Certificate{CommonName: "second"})))
	testenv.Eventually(t, 10*time.Second, func() bool { return c.Ping(t.Context()) == nil }, "connected with the new one")
	require.Equal(t, []string{"CN=second"}, b.subjects(t, c))
	require.NotContains(t, log.String(), "channel/connection is not open")
}

// counted counts what is written to the socket below TLS.
type counted struct {
	net.Conn
	writes *atomic.Int64
}

func (c counted) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}

// Messages are gathered above TLS: many of them go into one record and one write.
func testTLSGathersWrites(t *testing.T, b *tlsBroker) {
	var writes atomic.Int64
	c, _ := dialed(t, b.TLSURL(), Config{TLS: b.trusting(), DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		nc, err := new(net.Dialer).DialContext(ctx, network, address)
		return counted{nc, &writes}, err
	}})
	const n = 2000
	bodies := make([]string, n)
	for i := range bodies {
		bodies[i] = fmt.Sprintf("%d %s", i, make([]byte, 100))
	}
	writes.Store(0)
	roundTrip(t, c, bodies...)
	t.Logf("%d writes for %d messages", writes.Load(), n)
	// A fifth is usual: how many fit into one is up to the confirmations that come meanwhile, and to the scheduler. Ungathered
	// it is one each at least.
	require.Less(t, writes.Load(), int64(n/2))
}

// A peer that falls silent is noticed within three heartbeats, by TLS too, and at once when the network is back all goes on.
func testTLSFrozen(t *testing.T, b *tlsBroker) {
	proxy := testenv.Proxy(t, b.TLSURL())
	c, _ := dialed(t, proxy.URL(), Config{TLS: b.trusting(), Heartbeat: time.Second})
	roundTrip(t, c, "before")
	proxy.Freeze()
	began := time.Now()
	testenv.Eventually(t, 10*time.Second, func() bool {
		return phase(c, "publishing") != phaseConnected && phase(c, "consuming") != phaseConnected
	}, "noticed")
	took(t, began, 3*time.Second, "noticing a frozen peer")
	proxy.Heal()
	proxy.Cut()
	roundTrip(t, c, "after")
}
