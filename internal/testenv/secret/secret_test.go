package secret_test

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/warrenmq/warren/internal/testenv/secret"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFind(t *testing.T) {
	t.Parallel()
	var f secret.Finder
	require.True(t, f.Watch("amqp://user:p%40ssw%2Frd-of-theirs@host/"))
	require.False(t, f.Watch("amqp://guest:guest@host/"), "too short to be told from other text")
	require.False(t, f.Watch("amqp://host/"))
	one := secret.New()
	require.NotEqual(t, one, secret.New())
	address := url.URL{Scheme: "amqp", User: url.UserPassword("user", one), Host: "host"}
	for name, text := range map[string]string{
		"bare":         "password " + one + " is wrong",
		"in a URL":     address.String(),
		"quoted":       fmt.Sprintf("%q", "\t"+one),
		"of others":    "p@ssw/rd-of-theirs",
		"escaped":      "p%40ssw%2Frd-of-theirs",
		"private key":  "-----BEGIN EC PRIVATE KEY-----\nMHc",
		"as a literal": "amqp://user:s3cr3t-pass@host",
	} {
		redacted, found := f.Find([]byte("before " + text + " after"))
		require.True(t, found, name)
		require.True(t, strings.HasPrefix(redacted, "before "), redacted)
		require.NotContains(t, redacted, one)
		require.NotContains(t, redacted, "rd-of-theirs")
	}
	for before := range 7 {
		encoded := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("\x00", before) + one + "tail"))
		_, found := f.Find([]byte(encoded))
		require.True(t, found, "in base64 after %d bytes: %s", before, encoded)
	}
	for _, innocent := range []string{"", "guest", "a secret", "amqp://user:xxxxx@host/", strings.Repeat("AAAA", 99)} {
		_, found := f.Find([]byte(innocent))
		require.False(t, found, innocent)
	}
}
