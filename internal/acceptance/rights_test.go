package acceptance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
)

// right is one of a user's permissions: to configure, write to or read from what has the name, or begins with it when that
// ends with a star.
type right struct{ kind, name string }

func configure(names ...string) []right { return rightsOf("configure", names) }
func write(names ...string) []right     { return rightsOf("write", names) }
func read(names ...string) []right      { return rightsOf("read", names) }

func rightsOf(kind string, names []string) []right {
	var out []right
	for _, name := range names {
		out = append(out, right{kind, name})
	}
	return out
}

// role is what a user does with a pattern, and the rights that the package's comment says it needs for that. n begins the
// names of everything it uses, which nobody used before.
type role struct {
	name  string
	needs func(n string) []right
	do    func(c *cast, n string) error // as the user; returns what the pattern says when it may not
}

// cast are the two who act: an operator, who may do everything, and the user.
type cast struct {
	ctx            context.Context
	operator, user *reconnect.Conn
}

// Each pattern does all it is made for as a user with exactly the rights that its comment names; when any one of them is
// missing it says so, at once, by a 403 with the name of what may not be used.
func TestRights(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	operator := dialAs(t, b.URL())
	for _, r := range roles() {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			t.Run("with all", func(t *testing.T) {
				require.NoError(t, act(t, b, operator, r, func(right) bool { return true }))
			})
			for i, missing := range r.needs("N") {
				t.Run(fmt.Sprintf("without %s %s", missing.kind, missing.name), func(t *testing.T) {
					at := -1
					var name string
					err := act(t, b, operator, r, func(given right) bool {
						at++
						if at == i {
							name = given.name
						}
						return at != i
					})
					require.ErrorContains(t, err, "403")
					require.ErrorContains(t, err, strings.TrimSuffix(name, "*"), "the error names it")
					var refused *amqp.Error
					if errors.As(err, &refused) { // not so when it is a state's reason
						require.Equal(t, amqp.AccessRefused, refused.Code)
					}
					var declaring *reconnect.TopologyError
					if errors.As(err, &declaring) && !strings.HasSuffix(r.name, "/live") { // whose words are the broker's alone
						require.Equal(t, "right", declaring.Argument)
						require.Contains(t, declaring.Wanted, missing.kind, "the error names the right")
					}
				})
			}
		})
	}
}

// act plays the role as a new user with those of its rights that are given.
func act(t *testing.T, b *testenv.Broker, operator *reconnect.Conn, r role, given func(right) bool) error {
	t.Helper()
	n := shortName(t)
	t.Cleanup(func() { cleanUp(t, operator, n) })
	patterns := map[string][]string{}
	for _, need := range r.needs(n) {
		if given(need) {
			pattern := regexp.QuoteMeta(strings.TrimSuffix(need.name, "*"))
			if strings.HasSuffix(need.name, "*") {
				pattern += ".*"
			}
			patterns[need.kind] = append(patterns[need.kind], pattern)
		}
	}
	match := func(kind string) string { return "^(" + strings.Join(patterns[kind], "|") + ")$" }
	user := testenv.Name(t, "user")
	url := b.AddUser(t, user, testenv.Secret())
	b.SetPermissions(t, user, match("configure"), match("write"), match("read"))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return r.do(&cast{ctx, operator, dialAs(t, url)}, n)
}

// shortName is a name that nobody else has, short, so that those derived from it are not cut.
func shortName(t *testing.T) string {
	n := testenv.Name(t, "n")
	return "n" + n[strings.LastIndex(n, "."):]
}

func dialAs(t *testing.T, url string) *reconnect.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	conn, err := reconnect.Dial(ctx, url, reconnect.Config{Name: testenv.Name(t, "conn"), Logger: testenv.Logger(io.Discard)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(context.Background())) })
	return conn
}

// cleanUp deletes what the role has left behind.
func cleanUp(t *testing.T, operator *reconnect.Conn, n string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	ch, err := operator.Channel(ctx)
	require.NoError(t, err)
	defer ch.Close()
	for _, queue := range []string{"", ".dlq", ".moving", ".q", ".q.dlq", ".000", ".partitions", ".retry.100"} {
		_, err := ch.QueueDelete(n+queue, false, false, false)
		require.NoError(t, err)
	}
	for _, exchange := range []string{"", ".dlx", ".x"} {
		require.NoError(t, ch.ExchangeDelete(n+exchange, false, false))
	}
}

// runner is whatever has a Run.
type runner interface {
	Run(ctx context.Context) error
	Ready() <-chan struct{}
}

// consume runs r, whose handler reports on handled, until a message that send sends was handled. It returns what Run
// returns, or the state's reason when that tells of a refusal: then Run goes on, and asks again.
func (c *cast) consume(r runner, err error, handled <-chan struct{}, send func() error) error {
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(c.ctx)
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	defer func() {
		cancel()
		if ended != nil {
			<-ended
		}
	}()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	ready := r.Ready()
	for {
		select {
		case <-ready:
			ready = nil
			if err := send(); err != nil {
				return fmt.Errorf("the operator: %w", err)
			}
		case <-handled:
			cancel()
			err := <-ended
			ended = nil
			return err
		case err := <-ended:
			ended = nil
			return fmt.Errorf("Run ended: %w", err)
		case <-look.C:
			if reason := refusal(c.user); reason != "" {
				return errors.New(reason)
			}
		case <-c.ctx.Done():
			return c.ctx.Err()
		}
	}
}

// refusal is the reason of a state of conn that tells of one.
func refusal(conn *reconnect.Conn) string {
	for _, s := range conn.State() {
		if strings.Contains(s.Reason, "403") {
			return s.Name + ": " + s.Reason
		}
	}
	return ""
}

// handler reports each message.
func handler() (func(context.Context, amqp.Delivery) error, <-chan struct{}) {
	handled := make(chan struct{}, 100)
	return func(context.Context, amqp.Delivery) error {
		handled <- struct{}{}
		return nil
	}, handled
}

// errFailed is what a handler returns to have its message dead-lettered.
var errFailed = errors.New("failed")

// unlessReturned forgives that nobody was there to take a message.
func unlessReturned(err error) error {
	var returned *reconnect.ReturnedError
	if errors.As(err, &returned) {
		return nil
	}
	return err
}
