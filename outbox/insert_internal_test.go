package outbox

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStatementsAreBounded: PostgreSQL takes 1 GB at once, of whatever it is made: of bodies or of headers.
func TestStatementsAreBounded(t *testing.T) {
	large := strings.Repeat("x", 1<<20)
	s := newStatements(tables{base: "outbox"}, 1)
	for name, e := range map[string]entry{
		"bodies": {body: []byte(large)}, "headers": {headers: &large}, "properties": {properties: &large},
	} {
		entries := make([]entry, 300)
		for i := range entries {
			entries[i] = e
		}
		all, rows := s.inserts(entries), 0
		for _, i := range all {
			rows += i.rows
			require.LessOrEqual(t, i.rows, 128, name)
		}
		require.Equal(t, 300, rows, name)
		require.Len(t, all, 3, name)
	}
}
