package reconnect

import (
	"bytes"
	"context"
	"flag"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

func TestMain(m *testing.M) {
	// What these tests do is wait, for the most part, so there may be more at once than processors; -parallel wins.
	if f := flag.Lookup("test.parallel"); f != nil {
		flag.Parse()
		if f.Value.String() == f.DefValue {
			_ = f.Value.Set(strconv.Itoa(max(runtime.GOMAXPROCS(0), 12)))
		}
	}
	testenv.Main(m)
}

// inChaos reports whether the tests named Chaos have their long form (make chaos).
func inChaos() bool { return os.Getenv("WARREN_CHAOS") != "" }

// dialed returns a Conn to the broker at url that backs off shortly, logs to the returned log, and, unless the test does
// it, is closed without an error when the test ends.
func dialed(t *testing.T, url string, cfg Config) (*Conn, *logText) {
	t.Helper()
	cfg, log := testConfig(t, cfg)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c, err := Dial(ctx, url, cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		select {
		case <-c.closed: // by the test, which has looked at the error
			return
		default:
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, c.Close(ctx))
	})
	return c, log
}

// testConfig fills in what a test does not choose itself.
func testConfig(t *testing.T, cfg Config) (Config, *logText) {
	log := &logText{}
	setDefault(&cfg.Name, func() string { return testenv.Name(t, "conn") })
	setDefault(&cfg.BackoffMin, func() time.Duration { return 20 * time.Millisecond })
	setDefault(&cfg.BackoffMax, func() time.Duration { return 500 * time.Millisecond })
	cfg.Logger = testenv.Logger(log)
	return cfg, log
}

// logText is what was logged.
type logText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// hiccup is for how long a busy machine may not let a test, or its broker, do anything.
const hiccup = 2 * time.Second

// took fails the test when more than three times the promised bound has passed since began, or, where that is not more than
// a hiccup, more than one of those: what it looks for takes longer, or has no end.
func took(t *testing.T, began time.Time, bound time.Duration, what string) {
	t.Helper()
	if measured := time.Since(began); measured > max(3*bound, bound+hiccup) {
		t.Errorf("%s took %v, promised within %v", what, measured, bound)
	} else {
		t.Logf("%s took %v, promised within %v", what, measured.Round(time.Millisecond), bound)
	}
}

// within returns a context for one call of the test.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// receive returns what comes from ch, and fails the test when nothing does in time.
func receive[T any](t *testing.T, ch <-chan T, d time.Duration, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(d):
		require.FailNow(t, "not in time", "%s within %v", what, d)
		panic("unreachable")
	}
}

// phase returns the phase of the state with that name, "" when there is none.
func phase(c *Conn, name string) string {
	for _, s := range c.State() {
		if s.Name == name {
			return s.Phase
		}
	}
	return ""
}

// reasonHas reports whether the reason of the state with that name contains the text.
func reasonHas(c *Conn, name, text string) bool {
	for _, s := range c.State() {
		if s.Name == name {
			return strings.Contains(s.Reason, text)
		}
	}
	return false
}
