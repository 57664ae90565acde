package testenv

import (
	"crypto/rand"
	"encoding/hex"
	"strings"
	"testing"
)

// Name returns a name for a queue, an exchange, a connection or a user that no other test and no other run has:
// prefix, the test's name and a random end, at most 100 bytes of letters, digits, dots, dashes and underscores.
func Name(tb testing.TB, prefix string) string {
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails (crypto/rand)
	name := plain(prefix) + "." + plain(tb.Name())
	return name[:min(len(name), 91)] + "." + hex.EncodeToString(random[:])
}

// plain replaces what is special somewhere: in a URL, a routing key's wildcards, a shell.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '.', r == '-', r == '_':
			return r
		}
		return '-'
	}, s)
}
