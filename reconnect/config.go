package reconnect

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/warrenmq/warren/internal/telemetry"
)

// Config says how a Conn connects and what holds for everything that stands on it. The zero value is complete and safe.
//
// Where a field is a number or a duration, zero takes the default and -1, where it is named, means off or unlimited.
type Config struct {
	// Name is what the broker shows for the connections: "<Name>/publishing" and "<Name>/consuming". At most 200 bytes.
	// Default "<program>@<host>".
	Name string

	// Hosts are further brokers of the same cluster, each "host" or "host:port" (port of the URL when it has none). Every
	// address of all of them and of the URL's host is tried in random order, names resolved anew for each round.
	Hosts []string

	// Lazy makes Dial return without connecting; each link is then dialed when it is first needed.
	Lazy bool

	// TLS is cloned for each dial; its ServerName, when empty, becomes the name of the host dialed. The URL has to begin with
	// amqps. Default: the system's roots, or the certificate files named in the URL's query.
	TLS *tls.Config

	// TLSFunc, when set, is asked for the TLS configuration at each dial, instead of TLS: certificates renewed on disk
	// are picked up by the next reconnect. The connections there are stay, on the old ones.
	TLSFunc func(ctx context.Context) (*tls.Config, error)

	// Credentials, when set, is asked before each dial, instead of the URL's user and password. With a time of expiry it
	// is asked again after two thirds of the remaining life, and the new secret is sent to the broker over the live
	// connection (connection.update-secret). A zero time means that the credentials do not expire. With OAuth 2, what is
	// given here as expiry must be no later than the token's, from where on the broker refuses everything (403) and, from
	// RabbitMQ 4.2.6 on, closes the connection. A secret that it refuses ends the connection, and the next dial asks again.
	// The context of each question ends after DialTimeout. An error or a panic, here and of TLSFunc and DialContext, is one of
	// that dial: it is logged, and asked again.
	// For a user by client certificate return an *amqp.ExternalAuth, or name the mechanism in the URL
	// (auth_mechanism=external); the broker needs its plugin rabbitmq_auth_mechanism_ssl for that.
	Credentials func(ctx context.Context) (auth amqp.Authentication, expires time.Time, err error)

	// Heartbeat is the interval asked of the broker, whole seconds, 1 s to 65535 s; the smaller of both sides' holds. A
	// link whose peer is silent is given up within three heartbeats. Default: the URL's heartbeat, else 10 s.
	Heartbeat time.Duration

	// DialTimeout bounds one attempt on one address, the handshakes of TLS and AMQP included. Default 10 s.
	DialTimeout time.Duration

	// BackoffMin and BackoffMax bound the pause after a round of failed dials: doubling from the one to the other,
	// jittered to between half and all of it. The first dial after a loss comes at once. Defaults 100 ms and 30 s.
	BackoffMin, BackoffMax time.Duration

	// DialContext opens the TCP connection, for proxies. It is given host names as they are written, unresolved.
	// Default: net.Dialer, once for each address that the name resolves to.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)

	// Declare is the mode in which everything is declared on this Conn, unless an entity asks for a stricter one.
	Declare Declare

	// MaxBody, in bytes, is the largest body that is sent, and that patterns decode when it comes. RabbitMQ's own limit
	// is 16 MiB from 4.0 and 128 MiB before. Default 16 MiB; -1 no limit.
	MaxBody int

	// ConsumerTimeout is the broker's consumer_timeout: how long a delivery may stay unacknowledged before the broker
	// closes the channel. Handler timeouts are kept below it. Default 30 min, which is the broker's.
	ConsumerTimeout time.Duration

	// AbandonAfter is how long a stopping worker waits for a handler that ignores its context, after the grace period.
	// Default 5 s.
	AbandonAfter time.Duration

	// OnState is called with each change of state of a link or of a supervised function, in order and from one
	// goroutine. It may be slow: states that were overtaken meanwhile are left out. It must not call Close.
	OnState func(State)

	// Logger is told changes of state and failures, among them each message that is dead-lettered, but nothing of a
	// message that goes well. Default slog.Default().
	Logger *slog.Logger

	// TracerProvider makes the spans: of each publish, and of each call of a handler. Default, here and for the two below:
	// OpenTelemetry's global one, also when that is set later. Without any, none of them costs anything. What panics in one of
	// them is lost, and logged once a minute at most; no message is.
	TracerProvider trace.TracerProvider

	// MeterProvider takes the metrics of links, publishes and handlers.
	MeterProvider metric.MeterProvider

	// Propagator puts the trace context into the headers of what is published, and takes it from those of what comes,
	// before the handler is called. It works without a TracerProvider, too: what a caller's context carries reaches the
	// handler's. A message that carries a context keeps it. Baggage, or any other part, of more than 8 KB is left out.
	Propagator propagation.TextMapPropagator
}

const (
	maxName                = 200
	defaultHeartbeat       = 10 * time.Second
	defaultDialTimeout     = 10 * time.Second
	defaultBackoffMin      = 100 * time.Millisecond
	defaultBackoffMax      = 30 * time.Second
	defaultMaxBody         = 16 << 20
	defaultConsumerTimeout = 30 * time.Minute
	defaultAbandonAfter    = 5 * time.Second
)

// validate returns every fault of cfg at once.
func (cfg Config) validate() error {
	var faults []error
	bad := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if len(cfg.Name) > maxName {
		bad("Name: %d bytes, at most %d", len(cfg.Name), maxName)
	}
	if !utf8.ValidString(cfg.Name) {
		bad("Name: not valid UTF-8")
	}
	if cfg.Heartbeat != 0 && (cfg.Heartbeat < time.Second || cfg.Heartbeat > 65535*time.Second) {
		bad("Heartbeat: %v, must be between 1s and 65535s", cfg.Heartbeat)
	}
	for _, d := range []struct {
		field string
		value time.Duration
	}{
		{"DialTimeout", cfg.DialTimeout}, {"BackoffMin", cfg.BackoffMin}, {"BackoffMax", cfg.BackoffMax},
		{"ConsumerTimeout", cfg.ConsumerTimeout}, {"AbandonAfter", cfg.AbandonAfter},
	} {
		if d.value < 0 {
			bad("%s: %v, must not be negative", d.field, d.value)
		}
	}
	if filled := cfg.withDefaults(); filled.BackoffMax < filled.BackoffMin {
		bad("BackoffMax: %v is less than BackoffMin, %v", filled.BackoffMax, filled.BackoffMin)
	}
	if cfg.MaxBody < -1 {
		bad("MaxBody: %d, must be -1 (no limit), 0 (16 MiB) or a number of bytes", cfg.MaxBody)
	}
	if cfg.Declare < Active || cfg.Declare > Skip {
		bad("Declare: %d is not a mode", cfg.Declare)
	}
	if cfg.TLS != nil && cfg.TLSFunc != nil {
		bad("TLSFunc: set beside TLS, only one of them can hold")
	}
	for i, host := range cfg.Hosts {
		if !isHost(host) {
			bad("Hosts: number %d, %q, is neither host nor host:port", i, host)
		}
	}
	return errors.Join(faults...)
}

// withDefaults returns cfg with every zero value filled in, but for Heartbeat, which the URL may give.
func (cfg Config) withDefaults() Config {
	setDefault(&cfg.Name, defaultName)
	setDefault(&cfg.DialTimeout, func() time.Duration { return defaultDialTimeout })
	setDefault(&cfg.BackoffMin, func() time.Duration { return min(defaultBackoffMin, positive(cfg.BackoffMax, defaultBackoffMin)) })
	setDefault(&cfg.BackoffMax, func() time.Duration { return max(defaultBackoffMax, cfg.BackoffMin) })
	setDefault(&cfg.MaxBody, func() int { return defaultMaxBody })
	setDefault(&cfg.ConsumerTimeout, func() time.Duration { return defaultConsumerTimeout })
	setDefault(&cfg.AbandonAfter, func() time.Duration { return defaultAbandonAfter })
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	t := cfg.telemetry().WithDefaults()
	cfg.TracerProvider, cfg.MeterProvider, cfg.Propagator = t.TracerProvider, t.MeterProvider, t.Propagator
	return cfg
}

func (cfg Config) telemetry() telemetry.Config {
	return telemetry.Config{TracerProvider: cfg.TracerProvider, MeterProvider: cfg.MeterProvider, Propagator: cfg.Propagator,
		Logger: cfg.Logger.With("connection", cfg.Name)}
}

func setDefault[T comparable](field *T, value func() T) {
	var zero T
	if *field == zero {
		*field = value()
	}
}

func positive(d, otherwise time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return otherwise
}

// defaultName is the program's name and the machine's, so that the broker's list of connections tells who is who.
func defaultName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	name := filepath.Base(os.Args[0]) + "@" + host
	return strings.ToValidUTF8(name[:min(len(name), maxName)], "")
}

// isHost reports whether s is a name or an address, with or without a port.
func isHost(s string) bool {
	name := s
	if host, port, err := net.SplitHostPort(s); err == nil {
		number, err := strconv.ParseUint(port, 10, 16)
		if err != nil || number == 0 {
			return false
		}
		name = host
	}
	name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	return net.ParseIP(name) != nil || name != "" && !strings.ContainsAny(name, ":/@?# []")
}
