package testenv

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/testenv/provide"
)

// faultTime bounds every single question or order to a broker.
const faultTime = 20 * time.Second

// Broker is a running RabbitMQ as a test sees it. Its methods fail the test when the broker does not do what they ask.
type Broker struct {
	server *provide.RabbitMQ
}

// URL returns the address to dial, with credentials that may do everything.
func (b *Broker) URL() string { return b.server.URL }

// ManagementURL returns the root of the management API; the credentials in URL hold for it. Empty when there is none.
func (b *Broker) ManagementURL() string { return b.server.ManagementURL }

// Version returns the server's version, such as "3.10.8".
func (b *Broker) Version() string { return b.server.Version }

// AtLeast reports whether the server's version is major.minor or later.
func (b *Broker) AtLeast(major, minor int) bool {
	var gotMajor, gotMinor int
	_, _ = fmt.Sscanf(b.server.Version, "%d.%d", &gotMajor, &gotMinor)
	return gotMajor > major || gotMajor == major && gotMinor >= minor
}

// Dial opens a connection with the bare driver, closed when the test ends. Heartbeats are 10 s, the name is testenv.
func (b *Broker) Dial(tb testing.TB) *amqp.Connection {
	tb.Helper()
	return b.DialNamed(tb, "testenv")
}

// DialNamed is Dial with a connection_name, by which the fault tools find the connection.
func (b *Broker) DialNamed(tb testing.TB, name string) *amqp.Connection {
	tb.Helper()
	return dial(tb, b.URL(), name)
}

func dial(tb testing.TB, rawURL, name string) *amqp.Connection {
	tb.Helper()
	conn, err := amqp.DialConfig(rawURL, amqp.Config{
		Heartbeat:  10 * time.Second,
		Locale:     "en_US",
		Dial:       amqp.DefaultDial(10 * time.Second),
		Properties: amqp.Table{"connection_name": name},
	})
	if err != nil {
		tb.Fatalf("dial the broker: %v", err)
	}
	tb.Cleanup(func() { _ = conn.CloseDeadline(time.Now().Add(5 * time.Second)) })
	return conn
}

// Eval evaluates Erlang source, expressions that end with a dot, on the broker and decodes the JSON form of the last
// one's value into out (nil: drops it). Where only an address is given, the test is left out.
func (b *Broker) Eval(tb testing.TB, out any, source string) {
	tb.Helper()
	if !b.server.CanEval() {
		leaveOut(tb, "a broker that the test environment started")
	}
	ctx, cancel := context.WithTimeout(context.Background(), faultTime)
	defer cancel()
	if err := b.server.Eval(ctx, source, out); err != nil {
		tb.Fatal(err)
	}
}

// evalWith is Eval with the arguments' names in source replaced: $name by an Erlang binary with the value's bytes.
func (b *Broker) evalWith(tb testing.TB, out any, source string, args map[string]string) {
	tb.Helper()
	pairs := make([]string, 0, 2*len(args))
	for name, value := range args {
		pairs = append(pairs, "$"+name, provide.Binary(value))
	}
	b.Eval(tb, out, strings.NewReplacer(pairs...).Replace(source))
}

// vhost returns the virtual host of the broker's URL.
func (b *Broker) vhost(tb testing.TB) string {
	tb.Helper()
	u, err := amqp.ParseURI(b.URL())
	if err != nil {
		tb.Fatalf("the broker's URL: %v", err)
	}
	return u.Vhost
}

// as returns the broker's URL with another account.
func (b *Broker) as(tb testing.TB, user, password string) string {
	tb.Helper()
	u, err := url.Parse(b.URL())
	if err != nil {
		tb.Fatal("the broker's URL cannot be parsed")
	}
	u.User = url.UserPassword(user, password)
	return u.String()
}
