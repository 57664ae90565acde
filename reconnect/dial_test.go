package reconnect

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// listener accepts connections on a free port and hands each to serve, until the test ends.
func listener(t *testing.T, serve func(net.Conn)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	wg.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, nc)
			mu.Unlock()
			wg.Go(func() {
				defer nc.Close()
				serve(nc)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, nc := range open {
			_ = nc.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return l.Addr().String()
}

// deadAddress is one that refuses connections. It is that of a client, so that the system gives it to nobody else meanwhile.
func deadAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	client, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = client.Close()
		_ = l.Close()
	})
	return client.LocalAddr().String()
}

// hostOf is the host:port of a URL.
func hostOf(t *testing.T, rawURL string) string {
	t.Helper()
	u, err := url.Parse(rawURL)
	require.NoError(t, err)
	return u.Host
}

// withPath is the URL with another virtual host.
func withPath(t *testing.T, rawURL, path string) string {
	t.Helper()
	u, err := url.Parse(rawURL)
	require.NoError(t, err)
	u.Path = path
	return u.String()
}

const secret = "s3cr3t-pass"

func TestDialBadURLKeepsTheSecret(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{
		"http://user:" + secret + "@127.0.0.1/", "amqp://user:" + secret + "@127.0.0.1:port/", "user:" + secret + "@127.0.0.1",
		"amqp://user:" + secret + "%zz@127.0.0.1/", "amqp://user:" + secret + "@127.0.0.1/a b c/\x7f", "",
		"amqp://user:" + secret + "@127.0.0.1/?heartbeat=many", "amqp://user:" + secret + "@127.0.0.1/?hartbeat=5",
		"amqp://user:" + secret + "@127.0.0.1:99999/", "amqp://user:p?" + secret + "@127.0.0.1/",
		"amqp://user:" + secret + "@127.0.0.1/?auth_mechanism=magic",
		"amqps://user:" + secret + "@127.0.0.1/?cacertfile=/nowhere/ca.pem",
		"amqps://user:" + secret + "@127.0.0.1/?certfile=/nowhere/client.pem", "amqps://user:" + secret + "@127.0.0.1/?keyfile=/nowhere/key.pem",
	} {
		began := time.Now()
		cfg, log := testConfig(t, Config{})
		_, err := Dial(within(t, 10*time.Second), bad, cfg)
		require.Error(t, err, bad)
		require.ErrorContains(t, err, "reconnect: url: ")
		require.NotContains(t, err.Error()+log.String(), secret)
		_, err = Dial(within(t, 10*time.Second), bad, Config{MaxBody: -2})
		require.ErrorContains(t, err, "reconnect: url: ")
		require.ErrorContains(t, err, "MaxBody: -2", "all faults at once")
		took(t, began, 100*time.Millisecond, "refusing a bad URL")
	}
}

// TLS beside an address that does without would be taken for protection that there is not.
func TestDialTLSNeedsAmqps(t *testing.T) {
	t.Parallel()
	renewed := func(context.Context) (*tls.Config, error) { return nil, nil }
	for name, cfg := range map[string]Config{"TLS": {TLS: &tls.Config{}}, "TLSFunc": {TLSFunc: renewed}} {
		_, err := Dial(within(t, 10*time.Second), "amqp://user:"+secret+"@127.0.0.1:1/", cfg)
		require.ErrorContains(t, err, "amqps", name)
		require.NotContains(t, err.Error(), secret)
	}
}

func TestDialWrongPassword(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	user := testenv.Name(t, "user")
	good := b.AddUser(t, user, "right")
	u, err := url.Parse(good)
	require.NoError(t, err)
	u.User = url.UserPassword(user, secret)
	cfg, log := testConfig(t, Config{})
	began := time.Now()
	_, err = Dial(within(t, 30*time.Second), u.String(), cfg)
	took(t, began, 3500*time.Millisecond, "refusing a wrong password") // RabbitMQ waits 3 s before it drops the socket
	var refusal *amqp.Error
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, amqp.AccessRefused, refusal.Code)
	require.NotContains(t, err.Error()+log.String(), secret)
}

func TestDialMissingVirtualHost(t *testing.T) {
	t.Parallel()
	cfg, _ := testConfig(t, Config{})
	nowhere := withPath(t, testenv.Shared(t).URL(), "/nowhere") // the first to ask waits for the broker
	began := time.Now()
	_, err := Dial(within(t, 30*time.Second), nowhere, cfg)
	took(t, began, time.Second, "refusing a missing virtual host")
	var refusal *amqp.Error
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, amqp.NotAllowed, refusal.Code)
	require.ErrorContains(t, err, "nowhere", "the broker's own words")
}

func TestDialNoBroker(t *testing.T) {
	t.Parallel()
	cfg, log := testConfig(t, Config{})
	began := time.Now()
	_, err := Dial(within(t, hiccup), "amqp://user:"+secret+"@"+deadAddress(t)+"/", cfg)
	took(t, began, hiccup, "giving up with the context")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "connection refused", "the last dial's error")
	require.Greater(t, strings.Count(log.String(), "connecting failed"), 2)
	require.NotContains(t, err.Error()+log.String(), secret)
}

func TestDialWaitsForTheBroker(t *testing.T) {
	t.Parallel()
	p := testenv.Proxy(t, testenv.Shared(t).URL())
	p.Refuse()
	time.AfterFunc(300*time.Millisecond, p.Heal)
	c, _ := dialed(t, p.URL(), Config{})
	require.NoError(t, c.Ping(within(t, 5*time.Second)))
}

func TestDialLazy(t *testing.T) {
	t.Parallel()
	cfg, _ := testConfig(t, Config{Lazy: true})
	c, err := Dial(t.Context(), "amqp://"+deadAddress(t)+"/", cfg)
	require.NoError(t, err)
	require.Empty(t, c.State(), "no link is in use")
	require.NoError(t, c.Ping(t.Context()))
	err = c.Declare(within(t, hiccup), Topology{Queues: []Queue{{Name: "q"}}})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "connection refused")
	require.Equal(t, "connecting", phase(c, "publishing"))
	require.ErrorContains(t, c.Ping(t.Context()), "publishing link: not connected")
	require.NoError(t, c.Close(t.Context()))
}

func TestDialNamesTheConnections(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	c, _ := dialed(t, b.URL(), Config{Heartbeat: 7 * time.Second})
	ch, err := c.Channel(within(t, 5*time.Second))
	require.NoError(t, err)
	require.NoError(t, ch.Close())
	var names []string
	for _, info := range b.Connections(t, c.Config().Name) {
		names = append(names, info.Name)
		require.Equal(t, 7, info.Heartbeat)
		require.Equal(t, 131072, info.FrameMax)
	}
	require.ElementsMatch(t, []string{c.Config().Name + "/publishing", c.Config().Name + "/consuming"}, names)
}

func TestP15DialTriesEveryHostInARound(t *testing.T) {
	t.Parallel()
	p := testenv.Proxy(t, testenv.Shared(t).URL())
	var rounds atomic.Int32
	cfg := Config{Hosts: []string{deadAddress(t), hostOf(t, p.URL())}, OnState: func(s State) {
		if s.Phase == phaseConnecting {
			rounds.Store(int32(s.Attempts))
		}
	}}
	c, _ := dialed(t, strings.Replace(p.URL(), hostOf(t, p.URL()), deadAddress(t), 1), cfg)
	for range 5 {
		testenv.Eventually(t, 5*time.Second, func() bool { return c.Ping(t.Context()) == nil }, "connected")
		began := time.Now()
		require.Equal(t, 1, p.Cut())
		testenv.Eventually(t, 5*time.Second, func() bool { return c.Ping(t.Context()) == nil }, "connected again")
		took(t, began, time.Second, "a round with two dead hosts of three")
	}
	require.LessOrEqual(t, rounds.Load(), int32(6), "one round for each loss")
}

func TestDialTimeout(t *testing.T) {
	t.Parallel()
	var accepted atomic.Int32
	silent := listener(t, func(nc net.Conn) {
		accepted.Add(1)
		_, _ = io.Copy(io.Discard, nc)
	})
	const each = 200 * time.Millisecond
	cfg, _ := testConfig(t, Config{DialTimeout: each})
	began := time.Now()
	_, err := Dial(within(t, hiccup), "amqp://"+silent+"/", cfg)
	took(t, began, hiccup, "a dial to a peer that says nothing")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "handshake")
	require.GreaterOrEqual(t, accepted.Load(), int32(2), "attempts are bounded one by one")
	require.LessOrEqual(t, accepted.Load(), int32(time.Since(began)/each)+1)
}

// greeting is what a broker says first.
func greeting(t *testing.T, rawURL string) []byte {
	t.Helper()
	nc, err := net.Dial("tcp", hostOf(t, rawURL))
	require.NoError(t, err)
	defer nc.Close()
	require.NoError(t, nc.SetDeadline(time.Now().Add(5*time.Second)))
	_, err = nc.Write([]byte("AMQP\x00\x00\x09\x01"))
	require.NoError(t, err)
	head := make([]byte, 7)
	_, err = io.ReadFull(nc, head)
	require.NoError(t, err)
	rest := make([]byte, int(head[3])<<24|int(head[4])<<16|int(head[5])<<8|int(head[6])+1)
	_, err = io.ReadFull(nc, rest)
	require.NoError(t, err)
	return append(head, rest...)
}

func TestDialResetWhileAuthenticatingIsNotARefusal(t *testing.T) {
	t.Parallel()
	hello := greeting(t, testenv.Shared(t).URL())
	flaky := listener(t, func(nc net.Conn) {
		buf := make([]byte, 4096)
		_, _ = nc.Read(buf) // the protocol header
		_, _ = nc.Write(hello)
		_, _ = nc.Read(buf) // the credentials
		_ = nc.(*net.TCPConn).SetLinger(0)
	})
	cfg, log := testConfig(t, Config{})
	_, err := Dial(within(t, hiccup), "amqp://user:"+secret+"@"+flaky+"/", cfg)
	require.ErrorIs(t, err, context.DeadlineExceeded, "it was tried again")
	require.ErrorContains(t, err, "connection lost while authenticating")
	require.Greater(t, strings.Count(log.String(), "connecting failed"), 2)
	require.NotContains(t, err.Error()+log.String(), secret)
}

// gaps are the pauses between events.
func gaps(at []time.Time) []time.Duration {
	var out []time.Duration
	for i := 1; i < len(at); i++ {
		out = append(out, at[i].Sub(at[i-1]))
	}
	return out
}

func TestP15FlappingDoesNotResetTheBackoff(t *testing.T) {
	t.Parallel()
	const least, most = 50 * time.Millisecond, 400 * time.Millisecond
	check := func(t *testing.T, at []time.Time, first time.Duration) {
		t.Helper()
		got := gaps(at)
		require.GreaterOrEqual(t, len(got), 5)
		want := first
		for i, gap := range got[:5] {
			require.GreaterOrEqual(t, gap, want/2, "number %d of %v", i, got)
			want = min(max(2*want, least), most)
		}
	}
	t.Run("accepted and closed", func(t *testing.T) {
		t.Parallel()
		var mu sync.Mutex
		var at []time.Time // when each dial began, which is after its pause
		address := listener(t, func(net.Conn) {})
		cfg, _ := testConfig(t, Config{BackoffMin: least, BackoffMax: most, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			mu.Lock()
			at = append(at, time.Now())
			mu.Unlock()
			return new(net.Dialer).DialContext(ctx, network, address)
		}})
		_, err := Dial(within(t, 4*time.Second), "amqp://"+address+"/", cfg)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		mu.Lock()
		defer mu.Unlock()
		check(t, at, least)
	})
	t.Run("connected and cut", func(t *testing.T) {
		t.Parallel()
		p := testenv.Proxy(t, testenv.Shared(t).URL())
		var mu sync.Mutex
		var at []time.Time
		dialed(t, p.URL(), Config{BackoffMin: least, BackoffMax: most, OnState: func(s State) {
			if s.Phase == phaseConnected {
				mu.Lock()
				at = append(at, time.Now())
				mu.Unlock()
				p.Cut()
			}
		}})
		testenv.Eventually(t, 10*time.Second, func() bool { mu.Lock(); defer mu.Unlock(); return len(at) > 6 }, "six losses")
		mu.Lock()
		defer mu.Unlock()
		check(t, at, least)
	})
}

func TestMechanismOfTheURL(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]string{"": "PLAIN", "?auth_mechanism=plain": "PLAIN", "?auth_mechanism=amqplain": "AMQPLAIN",
		"?auth_mechanism=external": "EXTERNAL"} {
		d, err := newDialer("amqp://user:"+secret+"@127.0.0.1/"+query, Config{}.withDefaults())
		require.NoError(t, err)
		auth, _, err := d.credentials(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, auth.Mechanism())
	}
	c, _ := dialed(t, testenv.Shared(t).URL()+"?auth_mechanism=amqplain", Config{})
	require.NoError(t, c.Ping(within(t, 5*time.Second)))
}

func TestCredentialsAreAskedAtEachDial(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	u, err := amqp.ParseURI(b.URL())
	require.NoError(t, err)
	var asked atomic.Int32
	provider := func(context.Context) (amqp.Authentication, time.Time, error) {
		if asked.Add(1) == 1 {
			return nil, time.Time{}, errors.New("the vault is sealed")
		}
		return &amqp.PlainAuth{Username: u.Username, Password: u.Password}, time.Time{}, nil
	}
	c, log := dialed(t, "amqp://nobody:"+secret+"@"+hostOf(t, b.URL())+"/", Config{Credentials: provider})
	require.EqualValues(t, 2, asked.Load())
	require.Contains(t, log.String(), "the vault is sealed")
	_, err = c.Channel(within(t, 5*time.Second))
	require.NoError(t, err)
	require.EqualValues(t, 3, asked.Load())
	require.Equal(t, 2, b.CutConnections(t, c.Config().Name+"/"))
	testenv.Eventually(t, 5*time.Second, func() bool { return asked.Load() == 5 && c.Ping(t.Context()) == nil }, "both links are back")
	s, err := c.publishing.now()
	require.NoError(t, err)
	require.Equal(t, u.Username, s.user)
}

func TestCredentialsThatNeverCome(t *testing.T) {
	t.Parallel()
	cfg, _ := testConfig(t, Config{Credentials: func(ctx context.Context) (amqp.Authentication, time.Time, error) {
		return nil, time.Time{}, nil
	}})
	url := testenv.Shared(t).URL() // the first to ask waits for the broker
	_, err := Dial(within(t, hiccup), url, cfg)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "Credentials: no authentication and no error returned")
}

func TestCredentialsAreRenewedBeforeTheyExpire(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	u, err := amqp.ParseURI(b.URL())
	require.NoError(t, err)
	const life = 4500 * time.Millisecond // a third of it is for what else the machine does
	var asked atomic.Int32
	var began time.Time
	var at [3]time.Duration
	provider := func(context.Context) (amqp.Authentication, time.Time, error) {
		if began.IsZero() {
			began = time.Now()
		}
		n := asked.Load() + 1 // one question at a time
		if n <= 3 {
			at[n-1] = time.Since(began)
		}
		defer asked.Add(1)
		auth := &amqp.PlainAuth{Username: u.Username, Password: u.Password}
		switch n {
		case 1:
			return auth, began.Add(life), nil
		case 2:
			return nil, time.Time{}, errors.New("the vault is sealed")
		}
		return auth, time.Time{}, nil // for ever
	}
	c, log := dialed(t, b.URL(), Config{Credentials: provider})
	first, err := c.publishing.now()
	require.NoError(t, err)
	testenv.Eventually(t, 10*time.Second, func() bool { return asked.Load() == 3 }, "asked again")
	require.GreaterOrEqual(t, at[1], life*2/3, "two thirds of what is left once it is connected")
	require.Less(t, at[1], life, "before they expire")
	require.Contains(t, log.String(), "refreshing credentials failed")
	require.NoError(t, c.Ping(within(t, 5*time.Second)))
	now, err := c.publishing.now()
	require.NoError(t, err)
	require.Same(t, first, now, "on the living connection")
	require.NotContains(t, log.String(), fmt.Sprintf("%q", u.Password))
}

func TestDialTakesTheTimesOfTheURL(t *testing.T) {
	t.Parallel()
	const url = "amqp://127.0.0.1:1/?heartbeat=7&connection_timeout=1500"
	for name, tc := range map[string]struct{ cfg, want Config }{
		"URL":              {Config{}, Config{Heartbeat: 7 * time.Second, DialTimeout: 1500 * time.Millisecond}},
		"Config before it": {Config{Heartbeat: time.Second, DialTimeout: time.Second}, Config{Heartbeat: time.Second, DialTimeout: time.Second}},
	} {
		tc.cfg.Lazy = true
		c, err := Dial(t.Context(), url, tc.cfg)
		require.NoError(t, err, name)
		require.Equal(t, tc.want.Heartbeat, c.Config().Heartbeat, name)
		require.Equal(t, tc.want.DialTimeout, c.Config().DialTimeout, name)
		require.NoError(t, c.Close(t.Context()))
	}
}

func TestDialContextThatReturnsNothing(t *testing.T) {
	t.Parallel()
	cfg, _ := testConfig(t, Config{DialContext: func(context.Context, string, string) (net.Conn, error) { return nil, nil }})
	_, err := Dial(within(t, hiccup), "amqp://127.0.0.1:1/", cfg)
	require.ErrorContains(t, err, "DialContext: no connection and no error returned")
}
