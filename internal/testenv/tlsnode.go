package testenv

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"testing"
	"time"

	"github.com/warrenmq/warren/internal/testenv/provide"
	"github.com/warrenmq/warren/internal/testenv/secret"
)

// TLSNode is a broker with a TLS listener. It judges the certificate of a client that shows one, and lets that log in under
// its common name (SASL EXTERNAL). It also takes a Token for a password, whatever the user's name.
type TLSNode struct {
	*Broker
	tb  testing.TB
	key []byte // of its tokens
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
	n := &TLSNode{Broker: &Broker{server: node}, tb: tb, key: []byte(secret.New())}
	if err := node.TokenKey(ctx, n.key); err != nil {
		tb.Fatalf("the broker's key for tokens: %v", err)
	}
	return n
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

// Token returns an OAuth 2 token (JWT) that allows user everything until it expires, which is on a whole second.
func (n *TLSNode) Token(user string, expires time.Time) string {
	n.tb.Helper()
	const all = ":*/*"
	claims := map[string]any{
		"aud": []string{provide.TokenAudience}, "sub": user, "client_id": user, "exp": expires.Unix(), "jti": secret.New(),
		"scope": []string{provide.TokenAudience + ".configure" + all, provide.TokenAudience + ".write" + all, provide.TokenAudience + ".read" + all},
	}
	text := n.part(map[string]string{"alg": "HS256", "typ": "JWT", "kid": "key"}) + "." + n.part(claims)
	mac := hmac.New(sha256.New, n.key)
	mac.Write([]byte(text))
	return text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

func (n *TLSNode) part(v any) string {
	n.tb.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		n.tb.Fatalf("make a token: %v", err)
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

func tlsFiles(clients *Authority, server Issued) provide.TLSFiles {
	return provide.TLSFiles{Authority: clients.PEM(), Certificate: server.Cert, Key: server.Key}
}
