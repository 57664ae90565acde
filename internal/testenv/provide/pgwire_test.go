package provide

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// That it is let in by a real server, every test that uses a database shows: each server started here wants SCRAM.
func TestScramRefuses(t *testing.T) {
	s := newScram("pencil")
	_, err := s.final([]byte("r=another,s=QSXCR+Q6sek8bf92,i=4096"))
	require.ErrorContains(t, err, "nonce")
	_, err = s.final([]byte("r=" + s.nonce + "x,s=!,i=4096"))
	require.Error(t, err)
	_, err = s.final([]byte("r=" + s.nonce + "x,s=QSXCR+Q6sek8bf92,i=many"))
	require.Error(t, err)
	require.Error(t, s.verify([]byte("v=QSXCR+Q6sek8bf92")), "before any proof")
	_, err = s.final([]byte("r=" + s.nonce + "x,s=QSXCR+Q6sek8bf92,i=4096"))
	require.NoError(t, err)
	require.Error(t, s.verify([]byte("v=QSXCR+Q6sek8bf92")))
	var none *scramClient
	_, err = none.final(nil)
	require.Error(t, err)
}

func TestQuoteName(t *testing.T) {
	require.Equal(t, `"a""b; --"`, quoteName(`a"b; --`))
}
