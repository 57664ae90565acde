package provide

import (
	"fmt"
	"net"
)

// freePorts returns n different TCP ports that were free on loopback a moment ago. Another process may take one before
// it is used; whoever starts a server on one therefore tries again with others.
func freePorts(n int) ([]int, error) {
	ports := make([]int, 0, n)
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer l.Close() // only at the end, so that no port comes twice
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
