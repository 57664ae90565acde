package reconnect

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/apart"
	"github.com/warrenmq/warren/internal/coalesce"
)

// dialer makes connections by the URL and the Config. It holds no state, so both links share one.
type dialer struct {
	uri amqp.URI
	cfg Config
}

// newDialer parses the URL and fills in cfg, from it and by default. Its errors never repeat any of the URL, which holds a
// password: a stray "?" or "@" in that would make it part of any other piece.
func newDialer(raw string, cfg Config) (*dialer, error) {
	uri, err := amqp.ParseURI(raw)
	if err != nil || uri.Port < 1 || uri.Port > 65535 {
		return nil, errors.New("reconnect: url: not of the form amqp[s]://user:password@host:port/vhost, " +
			"with reserved characters percent-encoded and numbers in their range")
	}
	query, err := urlQuery(raw)
	if err != nil {
		return nil, fmt.Errorf("reconnect: url: %w", err)
	}
	if cfg.DialTimeout == 0 && uri.ConnectionTimeout > 0 {
		cfg.DialTimeout = time.Duration(uri.ConnectionTimeout) * time.Millisecond
	}
	if cfg = cfg.withDefaults(); cfg.Heartbeat == 0 {
		cfg.Heartbeat = urlHeartbeat(query)
	}
	d := &dialer{uri: uri, cfg: cfg}
	if _, err := d.urlAuth(); err != nil {
		return nil, fmt.Errorf("reconnect: url: %w", err)
	}
	secured := cfg.TLS != nil || cfg.TLSFunc != nil
	if uri.Scheme != "amqps" && secured {
		return nil, errors.New("reconnect: url: has to begin with amqps where TLS or TLSFunc is set; otherwise the password would be sent in the clear")
	}
	if uri.Scheme == "amqps" && !secured {
		if _, err := d.tlsFromURL(); err != nil { // read again at each dial; a wrong path will not mend itself
			return nil, fmt.Errorf("reconnect: url: %w", err)
		}
	}
	return d, nil
}

// urlParameters are those that a URL's query may have, as the driver's documentation lists them.
var urlParameters = []string{"certfile", "keyfile", "cacertfile", "server_name_indication", "auth_mechanism", "heartbeat",
	"connection_timeout", "channel_max"}

func urlQuery(raw string) (url.Values, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, errors.New("cannot be parsed")
	}
	query := u.Query()
	for name := range query {
		if !slices.Contains(urlParameters, name) {
			return nil, fmt.Errorf("its query has an unknown parameter; known are %s", strings.Join(urlParameters, ", "))
		}
	}
	return query, nil
}

// urlHeartbeat is the interval that the URL's query asks for, or the default: heartbeats are never off.
func urlHeartbeat(query url.Values) time.Duration {
	if seconds, err := strconv.ParseUint(query.Get("heartbeat"), 10, 16); err == nil && seconds > 0 {
		return time.Duration(seconds) * time.Second
	}
	return defaultHeartbeat
}

// address is one broker to dial.
type address struct {
	network string // host:port with the host resolved
	server  string // name for the verification of its certificate
}

// addresses returns every address of every host in random order. Names are resolved here, so anew for each round.
func (d *dialer) addresses(ctx context.Context) ([]address, error) {
	var out []address
	var faults []error
	for _, host := range append([]string{net.JoinHostPort(d.uri.Host, strconv.Itoa(d.uri.Port))}, d.cfg.Hosts...) {
		name, port := d.split(host)
		ips := []string{name}
		if d.cfg.DialContext == nil {
			var err error
			if ips, err = d.resolve(ctx, name); err != nil {
				faults = append(faults, err)
				continue
			}
		}
		for _, ip := range ips {
			out = append(out, address{net.JoinHostPort(ip, port), name})
		}
	}
	if len(out) == 0 {
		return nil, errors.Join(faults...)
	}
	rand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out, nil
}

func (d *dialer) resolve(ctx context.Context, name string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, d.cfg.DialTimeout)
	defer cancel()
	return net.DefaultResolver.LookupHost(ctx, name)
}

// split takes a host apart; one without a port has the URL's.
func (d *dialer) split(host string) (name, port string) {
	if name, port, err := net.SplitHostPort(host); err == nil {
		return name, port
	}
	return strings.Trim(host, "[]"), strconv.Itoa(d.uri.Port)
}

// opened is a connection right after its handshakes.
type opened struct {
	conn    *amqp.Connection
	sock    *coalesce.Conn
	user    string    // "" when the authentication does not tell it
	expires time.Time // of the credentials; zero: never
}

// dial connects to one address and completes the handshakes, within DialTimeout. role becomes part of the connection's
// name.
func (d *dialer) dial(ctx context.Context, to address, role string) (opened, error) {
	ctx, cancel := context.WithTimeout(ctx, d.cfg.DialTimeout)
	defer cancel()
	auth, expires, err := d.credentials(ctx)
	if err != nil {
		return opened{}, err
	}
	nc, err := d.open(ctx, to)
	if err != nil {
		return opened{}, err
	}
	sock := coalesce.New(nc)
	// The driver's handshake takes no context; dropping the socket is what ends it.
	stop := context.AfterFunc(ctx, sock.Kill)
	began := time.Now()
	conn, err := d.handshake(sock, auth, role)
	if !stop() && err == nil {
		err = ended(ctx)
	}
	if err != nil {
		sock.Kill() // ends the driver's goroutines too
		if a, ok := nc.(interface{ refusal() error }); ok && a.refusal() != nil {
			return opened{}, fmt.Errorf("handshake: %w", a.refusal())
		}
		return opened{}, handshakeError(ctx, err, time.Since(began))
	}
	sock.SetHeartbeat(conn.Config.Heartbeat)
	return opened{conn: conn, sock: sock, user: userOf(auth), expires: expires}, nil
}

// handshake has an authentication answer, which may be the user's own.
func (d *dialer) handshake(sock *coalesce.Conn, auth amqp.Authentication, role string) (_ *amqp.Connection, err error) {
	defer d.recovered("Credentials, what it gave", &err)
	return amqp.Open(sock, d.config(auth, role))
}

// socket connects to one of the brokers, without the handshake of AMQP.
func (d *dialer) socket(ctx context.Context) (apart.Socket, error) {
	ctx, cancel := context.WithTimeout(ctx, d.cfg.DialTimeout)
	defer cancel()
	to, err := d.addresses(ctx)
	if err != nil {
		return apart.Socket{}, err
	}
	auth, _, err := d.credentials(ctx)
	if err != nil {
		return apart.Socket{}, err
	}
	var faults []error
	for _, addr := range to {
		nc, err := d.open(ctx, addr)
		if err == nil {
			return apart.Socket{Conn: nc, Auth: auth, Vhost: d.uri.Vhost}, nil
		}
		faults = append(faults, dialFailed(addr, err))
	}
	return apart.Socket{}, errors.Join(faults...)
}

// dialFailed returns why an address could not be dialed, with that address, which the error of the socket names itself.
func dialFailed(to address, err error) error {
	if of, ok := err.(*net.OpError); ok && of.Op == "dial" {
		return err
	}
	return fmt.Errorf("dial %s: %w", to.network, err)
}

// credentials are the provider's, asked anew, or the URL's.
func (d *dialer) credentials(ctx context.Context) (auth amqp.Authentication, expires time.Time, err error) {
	if d.cfg.Credentials == nil {
		auth, err = d.urlAuth()
		return auth, time.Time{}, err
	}
	defer d.recovered("Credentials", &err)
	auth, expires, err = d.cfg.Credentials(ctx)
	if v := reflect.ValueOf(auth); err == nil && (!v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()) {
		err = errors.New("no authentication and no error returned")
	}
	if err != nil {
		return nil, expires, fmt.Errorf("Credentials: %w", err)
	}
	return auth, expires, nil
}

// urlAuth is the URL's user and password, in the mechanism that its query names first.
func (d *dialer) urlAuth() (amqp.Authentication, error) {
	mechanism := "plain"
	if len(d.uri.AuthMechanism) > 0 {
		mechanism = d.uri.AuthMechanism[0]
	}
	switch mechanism {
	case "plain":
		return d.uri.PlainAuth(), nil
	case "amqplain":
		return d.uri.AMQPlainAuth(), nil
	case "external":
		return &amqp.ExternalAuth{}, nil
	}
	return nil, fmt.Errorf("auth_mechanism: %q is not plain, amqplain or external", mechanism)
}

// config is the driver's configuration of one connection; the driver writes into the properties, so they are its own.
func (d *dialer) config(auth amqp.Authentication, role string) amqp.Config {
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName(d.cfg.Name + "/" + role)
	return amqp.Config{
		SASL:       []amqp.Authentication{auth},
		Vhost:      d.uri.Vhost,
		ChannelMax: d.uri.ChannelMax,
		FrameSize:  131072, // RabbitMQ's own; zero would ask Open for no limit
		Heartbeat:  d.cfg.Heartbeat,
		Properties: properties,
		Locale:     "en_US",
	}
}

// silentClose is a little less than RabbitMQ waits before it drops the socket of a client whose credentials it refused.
const silentClose = 2500 * time.Millisecond

// handshakeError makes the true reason visible. The driver takes any loss of the socket after the credentials were sent
// for wrong credentials; RabbitMQ drops it only three seconds later, so what comes earlier is a broken link.
func handshakeError(ctx context.Context, err error, took time.Duration) error {
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("handshake: %w", ended(ctx))
	case errors.Is(err, amqp.ErrCredentials) && took < silentClose:
		return errors.New("handshake: connection lost while authenticating")
	case errors.Is(err, amqp.ErrVhost): // the broker refuses a virtual host in words of its own
		return errors.New("handshake: connection lost while opening the virtual host")
	}
	return fmt.Errorf("handshake: %w", err)
}

// isRefusal reports whether a dial failed for a reason that asking again will not mend: credentials, virtual host,
// a certificate of either side. They are returned by Dial at once, and retried slowly by a link that had worked.
func isRefusal(err error) bool {
	var cert *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var alert tls.AlertError
	switch code := amqpCode(err); {
	case code == amqp.AccessRefused, code == amqp.NotAllowed:
		return true
	case errors.Is(err, amqp.ErrSASL), errors.Is(err, errSpeaksTLS):
		return true
	}
	return errors.As(err, &cert) || errors.As(err, &record) || errors.As(err, &alert)
}

// userOf is the name under which the broker knows an authentication, as far as it can be told.
func userOf(auth amqp.Authentication) string {
	switch a := auth.(type) {
	case *amqp.PlainAuth:
		return a.Username
	case *amqp.AMQPlainAuth:
		return a.Username
	}
	return ""
}
