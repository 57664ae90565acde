package migrate

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxIdentifier is what PostgreSQL keeps of a name, in bytes; the rest it cuts off without an error.
const maxIdentifier = 63

// Quote returns s as an SQL identifier: any text that CheckName accepts, upper case and quotes included, stays what it is.
func Quote(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

// Qualify returns the quoted name of a table; without a schema the session's search_path finds it.
func Qualify(schema, table string) string {
	if schema == "" {
		return Quote(table)
	}
	return Quote(schema) + "." + Quote(table)
}

// CheckName returns what is wrong with a name, whose longest suffix will be so many bytes long.
func CheckName(field, name string, suffix int) error {
	switch {
	case name == "":
		return fmt.Errorf("%s: empty", field)
	case len(name) > maxIdentifier-suffix:
		return fmt.Errorf("%s: %d bytes, at most %d", field, len(name), maxIdentifier-suffix)
	case !utf8.ValidString(name):
		return fmt.Errorf("%s: not valid UTF-8", field)
	case strings.ContainsRune(name, 0):
		return fmt.Errorf("%s: holds a NUL", field)
	}
	return nil
}
