package testenv

import (
	"context"
	"testing"

	"github.com/warrenmq/warren/internal/testenv/provide"
)

// TLSNode is a broker with a TLS listener. It judges the certificate of a client that shows one, and lets that log in under
// its common name (SASL EXTERNAL).
type TLSNode struct {
	*Broker
	tb testing.TB
}

// TLS starts a broker for the test alone, which shows server to its clients and trusts those of clients, and removes it
// when the test ends. It takes a few seconds.
func TLS(tb testing.TB, clients *Authority, server Issued) *TLSNode {
	tb.Helper()
	shared, err := sharedServer()
	if err != nil {
		tb.Fatalf("no RabbitMQ for the tests: %v\n%s", err, hint)
	}
	needsNode(tb, shared)
	p, err := provider()
	if err != nil {
		tb.Fatal(err) // asked for already
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	node, err := p.TLSNode(ctx, tlsFiles(clients, server))
	if err != nil {
		tb.Fatalf("no RabbitMQ with TLS for the test: %v", err)
	}
	tb.Cleanup(func() {
		if err := node.Remove(); err != nil {
			tb.Errorf("remove the broker: %v", err)
		}
	})
	return &TLSNode{Broker: &Broker{server: node}, tb: tb}
}

// TLSURL returns the address to dial with TLS, with credentials that may do everything.
func (n *TLSNode) TLSURL() string { return n.server.TLSURL }

// Show makes the broker show another certificate, and trust another authority's clients, from the next connection on.
// Those it has stay.
func (n *TLSNode) Show(clients *Authority, server Issued) {
	n.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), faultTime)
	defer cancel()
	if err := n.server.ReplaceTLS(ctx, tlsFiles(clients, server)); err != nil {
		n.tb.Fatalf("replace the broker's certificate: %v", err)
	}
}

func tlsFiles(clients *Authority, server Issued) provide.TLSFiles {
	return provide.TLSFiles{Authority: clients.PEM(), Certificate: server.Cert, Key: server.Key}
}
