package provide

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// Servers get ports from below those that systems give to clients: Linux begins at 32768, others at 49152. A client's would
// be gone when a server wants it back after a restart, be it to a client that dials the server meanwhile: from its own port.
const firstPort, lastPort = 20000, 32000

// freePorts returns n different TCP ports that were free on loopback a moment ago. Another process may take one before
// it is used; whoever starts a server on one therefore tries again with others.
func freePorts(n int) ([]int, error) {
	ports := make([]int, 0, n)
	var err error
	for attempt := 0; len(ports) < n; attempt++ {
		if attempt == 100*n {
			return nil, fmt.Errorf("find %d free ports from %d to %d: %w", n, firstPort, lastPort, err)
		}
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		l, refused := net.Listen("tcp", loopback(port))
		if refused != nil {
			err = refused
			continue
		}
		defer l.Close() // only at the end, so that no port comes twice
		ports = append(ports, port)
	}
	return ports, nil
}
