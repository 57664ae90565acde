package provide

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strconv"
	"strings"
)

// scramClient is the client's side of SCRAM-SHA-256 (RFC 5802, RFC 7677) as PostgreSQL speaks it: without channel
// binding, and with the user's name in the start-up message instead.
type scramClient struct {
	password  string
	nonce     string
	signature []byte // what the server has to prove that it knows the password
}

// gs2Header says: no channel binding, no other identity.
const gs2Header = "n,,"

func newScram(password string) *scramClient {
	return &scramClient{password: password, nonce: rand.Text()}
}

func (s *scramClient) first() []byte { return []byte(gs2Header + s.bare()) }

func (s *scramClient) bare() string { return "n=,r=" + s.nonce }

// final answers the server's challenge.
func (s *scramClient) final(challenge []byte) ([]byte, error) {
	if s == nil {
		return nil, errors.New("SCRAM challenge out of turn")
	}
	attributes := scramAttributes(challenge)
	salt, err := base64.StdEncoding.DecodeString(attributes["s"])
	if err != nil {
		return nil, err
	}
	iterations, err := strconv.Atoi(attributes["i"])
	if err != nil {
		return nil, err
	}
	nonce := attributes["r"]
	if !strings.HasPrefix(nonce, s.nonce) {
		return nil, errors.New("SCRAM challenge with another nonce")
	}
	salted, err := pbkdf2.Key(sha256.New, s.password, salt, iterations, sha256.Size)
	if err != nil {
		return nil, err
	}
	final := "c=" + base64.StdEncoding.EncodeToString([]byte(gs2Header)) + ",r=" + nonce
	message := s.bare() + "," + string(challenge) + "," + final
	clientKey := mac(salted, "Client Key")
	storedKey := sha256.Sum256(clientKey)
	proof := mac(storedKey[:], message)
	for i := range proof {
		proof[i] ^= clientKey[i]
	}
	s.signature = mac(mac(salted, "Server Key"), message)
	return []byte(final + ",p=" + base64.StdEncoding.EncodeToString(proof)), nil
}

// verify checks the server's own proof.
func (s *scramClient) verify(answer []byte) error {
	got, err := base64.StdEncoding.DecodeString(scramAttributes(answer)["v"])
	if err != nil || s == nil || s.signature == nil || !hmac.Equal(got, s.signature) {
		return errors.New("the server does not know the password either")
	}
	return nil
}

func mac(key []byte, message string) []byte {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(message))
	return m.Sum(nil)
}

// scramAttributes parses "a=value,b=value".
func scramAttributes(message []byte) map[string]string {
	attributes := make(map[string]string)
	for part := range strings.SplitSeq(string(message), ",") {
		if name, value, ok := strings.Cut(part, "="); ok {
			attributes[name] = value
		}
	}
	return attributes
}
