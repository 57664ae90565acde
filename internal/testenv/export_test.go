package testenv

import (
	"testing"

	"github.com/warrenmq/warren/internal/testenv/provide"
)

// At is the broker at an address of which nothing else is known.
func At(url string) *Broker {
	return &Broker{server: &provide.RabbitMQ{URL: url, Kind: provide.URL}}
}

// Kind returns who provided the broker.
func (b *Broker) Kind() provide.Kind { return b.server.Kind }

// SwapLeftOut replaces the list of the tests left out and returns what it was.
func SwapLeftOut(lines []string) []string {
	leftOut.Lock()
	defer leftOut.Unlock()
	old := leftOut.lines
	leftOut.lines = lines
	return old
}

// NeedsNode leaves the test out where there can be no node.
func NeedsNode(tb testing.TB, b *Broker) { needsNode(tb, b.server) }

// LeaveToContainers leaves the test to a pass on containers, if there is one.
func LeaveToContainers(tb testing.TB, why string) { leaveToContainers(tb, why) }

// TakeLeaks returns what was found of secrets in the log and forgets it.
func TakeLeaks() []string {
	watching.Lock()
	defer watching.Unlock()
	old := watching.leaks
	watching.leaks = nil
	return old
}
