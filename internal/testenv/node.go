package testenv

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/warrenmq/warren/internal/testenv/provide"
)

// What a node's settings are when no test changed them, in RabbitMQ's own defaults.
const (
	defaultConsumerTimeout = 30 * time.Minute
	defaultChannelTick     = time.Minute
	defaultMaxMessageSize  = 128 << 20 // 16 MiB since RabbitMQ 4; nobody here tells the two apart
)

// FaultNode is a broker of which the test may break the whole. Its methods fail the test that it is lent to, and are called
// from that test's goroutine.
type FaultNode struct {
	*Broker
	tb      testing.TB
	frozen  bool
	changed bool // settings that are to be put back
}

// lending says who has the node.
var lending struct {
	inUse  sync.Mutex // held as long as a test has the node
	mu     sync.Mutex
	holder *FaultNode
}

// Node lends the test the node that this binary's tests share for faults that hit a whole broker, and starts it at
// first use. No other test has it until this one has ended, and it is whole again then: running, thawed, without alarm
// and with its usual settings; queues and messages stay. Asking twice gives the same node.
func Node(tb testing.TB) *FaultNode {
	tb.Helper()
	lending.mu.Lock()
	held := lending.holder
	lending.mu.Unlock()
	if held != nil && held.tb == tb {
		return held
	}
	lending.inUse.Lock()
	tb.Cleanup(lending.inUse.Unlock)
	server, err := nodeServer(tb)
	if err != nil {
		tb.Fatalf("no RabbitMQ node for the test: %v\n%s", err, hint)
	}
	n := &FaultNode{Broker: &Broker{server: server}, tb: tb}
	setHolder(n)
	tb.Cleanup(func() {
		setHolder(nil)
		n.heal()
	})
	return n
}

// nodeServer starts the node when there is none yet.
func nodeServer(tb testing.TB) (*provide.RabbitMQ, error) {
	tb.Helper()
	server, err := sharedServer()
	if err != nil {
		return nil, err
	}
	needsNode(tb, server)
	p, err := provider()
	if err != nil {
		return nil, err
	}
	return owned.node.get(p.Node)
}

// needsNode leaves the test out where the shared broker is only an address: then there can be no node.
func needsNode(tb testing.TB, shared *provide.RabbitMQ) {
	tb.Helper()
	if shared.Kind == provide.URL {
		leaveOut(tb, "a broker of its own, to break it")
	}
}

func setHolder(n *FaultNode) {
	lending.mu.Lock()
	lending.holder = n
	lending.mu.Unlock()
}

// heal undoes what the test did to the node.
func (n *FaultNode) heal() {
	if n.frozen {
		n.Thaw()
	}
	if !n.server.Running() {
		n.Start()
	}
	if n.changed {
		n.Alarm(false)
		n.ConsumerTimeout(defaultConsumerTimeout)
		n.MaxMessageSize(defaultMaxMessageSize)
	}
}

// Stop ends the node in good order: clients get 320 CONNECTION_FORCED, and then dials are refused. It returns once
// the node has ended.
func (n *FaultNode) Stop() {
	n.tb.Helper()
	n.do("stop", n.server.Stop)
}

// Start boots a node that was stopped or killed, under the same address and with its data, and returns once it serves.
// What was set by ConsumerTimeout, MaxMessageSize and Alarm is forgotten.
func (n *FaultNode) Start() {
	n.tb.Helper()
	n.do("start", n.server.Start)
}

// Restart is Stop and Start.
func (n *FaultNode) Restart() {
	n.tb.Helper()
	n.Stop()
	n.Start()
}

// Kill ends the node as a power failure would: connections break without a word. Data that was confirmed is there
// after Start.
func (n *FaultNode) Kill() {
	n.tb.Helper()
	n.frozen = false
	n.do("kill", func(context.Context) error { return n.server.Kill() })
}

// Freeze stops the node where it is: connections stay open, new ones are accepted by the kernel, nothing answers.
func (n *FaultNode) Freeze() {
	n.tb.Helper()
	n.do("freeze", func(context.Context) error { return n.server.Freeze() })
	n.frozen = true
}

// Thaw ends Freeze.
func (n *FaultNode) Thaw() {
	n.tb.Helper()
	n.do("thaw", func(context.Context) error { return n.server.Thaw() })
	n.frozen = false
}

// Alarm raises or clears the memory alarm: connections that publish are blocked, connection.blocked comes at once.
func (n *FaultNode) Alarm(on bool) {
	n.tb.Helper()
	n.changed = true
	n.do("alarm", func(ctx context.Context) error { return n.server.Alarm(ctx, on) })
}

// ConsumerTimeout sets how long a delivery may stay unsettled before the broker closes its channel. It holds for
// channels opened from now on, which look at it every second, or more often when d is shorter than that.
func (n *FaultNode) ConsumerTimeout(d time.Duration) {
	n.tb.Helper()
	n.changed = true
	tick := min(max(d/2, 100*time.Millisecond), time.Second)
	if d >= defaultConsumerTimeout {
		tick = defaultChannelTick
	}
	n.Eval(n.tb, nil, fmt.Sprintf(`
ok = application:set_env(rabbit, consumer_timeout, %d),
ok = application:set_env(rabbit, channel_tick_interval, %d), ok.`, d.Milliseconds(), tick.Milliseconds()))
}

// MaxMessageSize sets the largest body, in bytes, the broker takes from channels opened from now on.
func (n *FaultNode) MaxMessageSize(bytes int) {
	n.tb.Helper()
	n.changed = true
	n.Eval(n.tb, nil, fmt.Sprintf(`
ok = application:set_env(rabbit, max_message_size, %[1]d),
ok = persistent_term:put(max_message_size, %[1]d), ok.`, bytes))
}

func (n *FaultNode) do(what string, action func(context.Context) error) {
	n.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	if err := action(ctx); err != nil {
		n.tb.Fatalf("%s the node: %v", what, err)
	}
}
