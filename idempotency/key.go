package idempotency

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
)

// shownKey is how much of a key is shown in an error, in characters.
const shownKey = 40

// storable returns what is wrong with s as a key or as the name of a consumer, "" when nothing is.
func storable(s string) string {
	switch {
	case s == "":
		return "empty"
	case len(s) > maxKey:
		return fmt.Sprintf("%d bytes, at most %d", len(s), maxKey)
	case strings.ContainsRune(s, 0):
		return "holds a NUL, which PostgreSQL cannot store"
	case !utf8.ValidString(s):
		return "not valid UTF-8, which PostgreSQL cannot store"
	}
	return ""
}

// checked returns key as it is stored. Nothing is cut off, replaced or hashed: two keys that differ stay two.
func (b *Inbox) checked(key string) (string, error) {
	if fault := storable(key); fault != "" {
		return "", refused(key, fault)
	}
	if !b.cfg.UUIDKeys {
		return key, nil
	}
	id, err := uuid.Parse(key)
	if err != nil || len(key) != len(uuid.UUID{}.String()) {
		return "", refused(key, "not a UUID, which UUIDKeys asks for")
	}
	return id.String(), nil
}

func refused(key, fault string) error {
	if key == "" {
		return fmt.Errorf("%w: %s", ErrNoKey, fault)
	}
	if len(key) > shownKey {
		return fmt.Errorf("%w: %.*q...: %s", ErrNoKey, shownKey, key, fault)
	}
	return fmt.Errorf("%w: %q: %s", ErrNoKey, key, fault)
}
