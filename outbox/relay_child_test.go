package outbox

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	osexec "os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
)

// childEnv makes this test binary a relay: its value is a childConfig.
const childEnv = "WARREN_OUTBOX_RELAY"

type childConfig struct {
	Database, Broker string
	Lanes            int
	Relay            RelayConfig
}

// relayChild relays until SIGTERM, and logs as JSON on standard output.
func relayChild() {
	var cfg childConfig
	check := func(err error) {
		if err != nil {
			slog.Error("child", "error", err)
			os.Exit(1)
		}
	}
	check(json.Unmarshal([]byte(os.Getenv(childEnv)), &cfg))
	logger := testenv.LoggerTo(slog.NewJSONHandler(os.Stdout, nil))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, cfg.Database)
	check(err)
	defer pool.Close()
	conn, err := reconnect.Dial(ctx, cfg.Broker, reconnect.Config{Name: "outbox-child", Logger: logger})
	check(err)
	defer func() { _ = conn.Close(context.Background()) }()
	pub, err := conn.NewPublisher(reconnect.PublisherConfig{Window: 1000})
	check(err)
	box, err := New(pool, Config{Lanes: cfg.Lanes, Logger: logger})
	check(err)
	r, err := NewRelay(box, pub, cfg.Relay)
	check(err)
	logger.Info("child runs")
	check(r.Run(ctx))
	logger.Info("child ends")
}

// child is a relay in a process of its own.
type child struct {
	cmd    *osexec.Cmd
	runs   atomic.Bool
	leads  atomic.Int32 // lanes
	stops  atomic.Int32 // how often it said that it no longer leads
	ended  chan struct{}
	failed atomic.Bool
}

func startChild(t testing.TB, cfg childConfig) *child {
	t.Helper()
	env, err := json.Marshal(cfg)
	require.NoError(t, err)
	cmd := osexec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+string(env))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	c := &child{cmd: cmd, ended: make(chan struct{})}
	go func() {
		defer close(c.ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			c.hear(lines.Bytes())
		}
		c.failed.Store(cmd.Wait() != nil)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-c.ended
	})
	return c
}

func (c *child) hear(line []byte) {
	var said struct{ Msg string }
	if json.Unmarshal(line, &said) != nil {
		return
	}
	switch said.Msg {
	case "child runs":
		c.runs.Store(true)
	case "outbox: leads the lane":
		c.leads.Add(1)
	case "outbox: no longer leads the lane":
		c.leads.Add(-1)
		c.stops.Add(1)
	}
}

func (c *child) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	require.NoError(t, c.cmd.Process.Signal(s))
}

// fleet is relays in processes of their own, on one outbox, and a queue that they send to.
type fleet struct {
	t     testing.TB
	url   string
	box   *Outbox
	inbox *inbox
	all   []*child
}

func newFleet(t testing.TB, n int, cfg RelayConfig) *fleet {
	t.Helper()
	url := testenv.Postgres(t)
	return newFleetThrough(t, url, url, n, cfg)
}

// newFleetThrough is newFleet with another way to the database for the relays.
func newFleetThrough(t testing.TB, url, through string, n int, cfg RelayConfig) *fleet {
	t.Helper()
	f := &fleet{t: t, url: url, box: boxIn(t, newPool(t, url, nil), Config{}), inbox: newInbox(t)}
	for range n {
		f.all = append(f.all, startChild(t, childConfig{Database: through, Broker: testenv.Shared(t).URL(), Lanes: 1, Relay: cfg}))
	}
	for _, c := range f.all {
		testenv.Eventually(t, 3*patience, c.runs.Load, "the relay runs")
	}
	f.leader()
	return f
}

// leader waits for the one that leads.
func (f *fleet) leader() (leader *child) {
	f.t.Helper()
	testenv.Eventually(f.t, 3*patience, func() bool {
		for _, c := range f.all {
			if c.leads.Load() > 0 {
				leader = c
			}
		}
		return leader != nil
	}, "one leads")
	return leader
}

// others returns the fleet without c.
func (f *fleet) others(c *child) *fleet {
	rest := &fleet{t: f.t, url: f.url, box: f.box, inbox: f.inbox}
	for _, other := range f.all {
		if other != c {
			rest.all = append(rest.all, other)
		}
	}
	return rest
}

// load stores n rows in the background, numbered from first on, some in each transaction; wait returns when they are.
func (f *fleet) load(first, n, each int) (wait func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := first; i < first+n; i += each {
			msgs := make([]Message, min(each, first+n-i))
			for j := range msgs {
				msgs[j] = Message{Key: f.inbox.queue}
				msgs[j].Type = strconv.Itoa(i + j)
				msgs[j].Body = []byte(fmt.Sprint(time.Now().UnixNano()))
			}
			storeAll(f.t, f.box, msgs...)
		}
	}()
	f.t.Cleanup(func() { <-done })
	return func() { <-done }
}

// A19, P55: four relays under load. The one that leads is killed; the next one is stopped for 20 s and continued; the next
// one is told to stop. Each time another one takes over, and nothing is lost. What comes twice after a kill or a stop is at
// most a Batch, with equal ids; after a stop in good order nothing does. The one that was stopped leads no longer when it goes
// on, by itself.
func TestA19P55LeadersThatEnd(t *testing.T) {
	t.Parallel()
	const rows, batch = 5000, 500
	f := newFleet(t, 4, RelayConfig{Batch: batch})
	stored := 0
	flow := func() {
		f.load(stored, rows/3, 25)
		stored += rows / 3
		testenv.Eventually(t, 3*patience, func() bool { return f.inbox.count() > stored-rows/3+100 }, "rows flow")
	}
	// ends has the leader end, and returns it, how long the takeover took and what came twice.
	ends := func(s syscall.Signal) (leader *child, took time.Duration, twice func() int) {
		leader = f.leader()
		before, start := f.inbox.repeated(), time.Now()
		leader.signal(t, s)
		f = f.others(leader)
		f.leader()
		return leader, time.Since(start), func() int {
			drained(t, f.box)
			f.inbox.complete(t, stored)
			return f.inbox.repeated() - before
		}
	}

	// First, since what one that is killed or stopped has in its sockets may arrive late.
	flow()
	told, took, twice := ends(syscall.SIGTERM)
	<-told.ended
	require.False(t, told.failed.Load(), "it ended without an error")
	n := twice()
	t.Logf("told to stop: took over after %v, %d of %d messages came twice", took.Round(time.Millisecond), n, rows/3)
	require.Zero(t, n)

	flow()
	_, took, twice = ends(syscall.SIGKILL)
	n = twice()
	t.Logf("killed: took over after %v, %d of %d messages came twice", took.Round(time.Millisecond), n, rows/3)
	require.LessOrEqual(t, n, batch)
	require.Less(t, took, 6*time.Second, "target: 2 s")

	flow()
	start := time.Now()
	stops := f.leader().stops.Load()
	stopped, took, twice := ends(syscall.SIGSTOP)
	testenv.Eventually(t, 3*patience, func() bool { return time.Since(start) > 20*time.Second }, "20 s pass")
	stopped.signal(t, syscall.SIGCONT)
	testenv.Eventually(t, patience, func() bool { return stopped.stops.Load() > stops }, "it says that it no longer leads")
	f.all = append(f.all, stopped) // it stands by again
	n = twice()
	t.Logf("stopped: took over after %v, %d of %d messages came twice", took.Round(time.Millisecond), n, rows/3)
	require.LessOrEqual(t, n, batch)
	require.Less(t, took, 19*time.Second, "target: 15 s")
}

// Behind a pooler that gives each transaction another session there are no session locks: relays elect by a lease. The one
// that leads is killed, the next one stopped for longer than its lease: each time another one takes over when the lease has
// ended, nothing is lost, and the one that was stopped no longer leads when it goes on.
func TestP55LeaseBehindAPooler(t *testing.T) {
	t.Parallel()
	const rows, batch, lease = 3000, 200, 1500 * time.Millisecond
	url := testenv.Postgres(t)
	f := newFleetThrough(t, url, testenv.Pooler(t, url, 3), 3, RelayConfig{Batch: batch, Lease: lease, PollInterval: 200 * time.Millisecond})
	wait := f.load(0, rows, 10)
	testenv.Eventually(t, 3*patience, func() bool { return f.inbox.count() > 300 }, "rows flow")
	killed := f.leader()
	start := time.Now()
	killed.signal(t, syscall.SIGKILL)
	rest := f.others(killed)
	stopped := rest.leader()
	took := time.Since(start)
	testenv.Eventually(t, 3*patience, func() bool { return f.inbox.count() > 600 }, "rows flow")
	stopped.signal(t, syscall.SIGSTOP)
	rest.others(stopped).leader()
	stopped.signal(t, syscall.SIGCONT)
	testenv.Eventually(t, patience, func() bool { return stopped.stops.Load() > 0 }, "the stopped one says that it no longer leads")
	wait()
	drained(t, f.box)
	f.inbox.complete(t, rows)
	changes := 1 + int(killed.stops.Load()) // of the lead: a kill, and whatever losses of the lease; a busy machine adds to these
	for _, c := range rest.all {
		changes += int(c.stops.Load())
	}
	require.LessOrEqual(t, f.inbox.repeated(), changes*batch, "a Batch for each")
	t.Logf("took over after %v; %d of %d messages came twice", took.Round(time.Millisecond), f.inbox.repeated(), rows)
	require.Less(t, took, 3*(lease+time.Second))
}

// Without a Lease a relay behind such a pooler would take a lock that belongs to nobody in particular. It notices.
func TestPoolerWithoutALease(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	box := boxIn(t, newPool(t, url, nil), Config{})
	through := newPool(t, testenv.Pooler(t, url, 3), func(cfg *pgxpool.Config) { cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec })
	var log logged
	pooled, err := New(through, Config{Logger: testenv.Logger(&log)})
	require.NoError(t, err)
	relay(t, pooled, new(fake), RelayConfig{})
	testenv.Eventually(t, 3*patience, func() bool { return strings.Contains(log.String(), "RelayConfig.Lease") }, "it says what to set")
	require.Zero(t, waiting(t, box))
}

// logged is a log as text.
type logged struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
