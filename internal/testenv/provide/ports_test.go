package provide

import (
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFreePorts(t *testing.T) {
	ports, err := freePorts(500)
	require.NoError(t, err)
	seen := map[int]bool{}
	for _, port := range ports {
		require.False(t, seen[port], "%d comes twice", port)
		seen[port] = true
		l, err := net.Listen("tcp", loopback(port))
		require.NoError(t, err)
		require.NoError(t, l.Close())
	}
}

// The port of a server that is away for a moment is nobody else's, whoever opens a connection then.
func TestClientsGetOtherPorts(t *testing.T) {
	given, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil { // elsewhere the range begins at 49152
		t.Log(err)
		given = []byte("49152")
	}
	from, err := strconv.Atoi(strings.Fields(string(given))[0])
	require.NoError(t, err)
	require.Greater(t, from, lastPort)
}
