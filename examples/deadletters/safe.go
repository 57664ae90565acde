package main

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// safe returns s so that it can be printed on a terminal, whatever it holds: what is not a printable character, or not even
// text, becomes \x1b, \u202e and the like, and a backslash two of them. The first characters of C1, which some terminals take
// for escapes, and those that turn the direction of the writing are not printable.
func safe(s string) string {
	var out strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&out, `\x%02x`, s[0])
		case r == '\\':
			out.WriteString(`\\`)
		case unicode.IsPrint(r):
			out.WriteRune(r)
		case r < 0x80:
			fmt.Fprintf(&out, `\x%02x`, r)
		case r <= 0xffff:
			fmt.Fprintf(&out, `\u%04x`, r)
		default:
			fmt.Fprintf(&out, `\U%08x`, r)
		}
		s = s[n:]
	}
	return out.String()
}
