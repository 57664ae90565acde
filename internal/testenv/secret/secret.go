// Package secret makes the passwords of tests and finds them again in what the tests write. Every one of them begins with
// the same mark, so whoever reads a log can tell a secret without having been told which there are.
package secret

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"net/url"
	"strings"
)

// Mark begins every secret of the tests, also those written down in them. Escaping for a URL, JSON or Go leaves it as it
// is.
const Mark = "s3cr3t-"

// New returns a secret that nobody else has.
func New() string { return Mark + strings.ToLower(rand.Text()) }

// shortest is the length below which a password that we did not make, guest for one, cannot be told from other text.
const shortest = 8

// Finder finds secrets in text: those of this package, private keys, and the passwords in the URLs it was given. The zero
// value finds the first two.
type Finder struct{ others [][]byte }

// Watch adds the password of a URL; it reports false when there is none, or it is too short to be looked for.
func (f *Finder) Watch(rawURL string) bool {
	u, err := url.Parse(rawURL)
	if err != nil || u.User == nil {
		return false
	}
	password, _ := u.User.Password()
	if len(password) < shortest {
		return false
	}
	f.others = append(f.others, []byte(password))
	if _, escaped, _ := strings.Cut(u.User.String(), ":"); escaped != password {
		f.others = append(f.others, []byte(escaped))
	}
	return true
}

// Find reports whether text has a secret in it, and returns the text with as much of it as names it hidden.
func (f *Finder) Find(text []byte) (redacted string, found bool) {
	for _, needles := range [2][][]byte{marks, f.others} {
		for _, needle := range needles {
			if at := bytes.Index(text, needle); at >= 0 {
				return string(text[:at]) + "[a secret]", true
			}
		}
	}
	return "", false
}

// marks are how a secret of this package begins, as it is and inside base64, and what a private key begins with.
var marks = append(inBase64([]byte(Mark)), []byte(Mark), []byte("PRIVATE KEY-----"))

// inBase64 returns what is in the base64 form of any text that contains s: at each of the three places it may have in a
// group, less the characters that depend on what surrounds it.
func inBase64(s []byte) [][]byte {
	var forms [][]byte
	for before := range 3 {
		text := append(make([]byte, before), s...)
		whole := len(text) / 3 * 3
		encoded := base64.StdEncoding.EncodeToString(text[:whole])
		forms = append(forms, []byte(encoded[(before+2)/3*4:]))
	}
	return forms
}
