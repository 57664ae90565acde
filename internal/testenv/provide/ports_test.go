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
	seen, taken := map[int]bool{}, 0
	for _, port := range ports {
		require.False(t, seen[port], "%d comes twice", port)
		seen[port] = true
		l, err := net.Listen("tcp", loopback(port))
		if err != nil {
			taken++
			continue
		}
		require.NoError(t, l.Close())
	}
	require.Less(t, taken, 10, "since a moment ago: other tests start servers at the same time")
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
