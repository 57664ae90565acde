package wire

import (
	"errors"
	"strings"
	"unicode/utf8"
)

const maxShort = 255

// ShortString checks a string that goes into a declaration, a binding or a consume: at most 255 bytes of valid UTF-8.
func ShortString(field, s string) error {
	return errors.Join(length(field, s), validUTF8(field, s))
}

// Name checks the name of something to be declared: a ShortString that is not empty, does not begin with "amq.", which
// is the broker's own, and holds no line breaks, which the broker would take out.
func Name(field, name string) error {
	var f faults
	if name == "" {
		f.add(fault(field, "empty"))
	}
	f.add(length(field, name))
	f.add(validUTF8(field, name))
	if strings.HasPrefix(name, "amq.") {
		f.add(fault(field, "%s begins with amq., which is reserved", quote(name)))
	}
	if strings.ContainsAny(name, "\r\n") {
		f.add(fault(field, "%s holds a line break", quote(name)))
	}
	return errors.Join(f...)
}

// length checks the bound of every short string of the protocol.
func length(field, s string) error {
	if len(s) > maxShort {
		return fault(field, "%d bytes, at most %d", len(s), maxShort)
	}
	return nil
}

func validUTF8(field, s string) error {
	if !utf8.ValidString(s) {
		return fault(field, "%s is not valid UTF-8", quote(s))
	}
	return nil
}
