package main

import (
	"context"
	"errors"
	"net"
	"sync"
)

// network is what lies between an instance and the broker. It can be cut.
type network struct {
	mu    sync.Mutex
	down  bool
	conns []net.Conn
}

var errDown = errors.New("the network is down")

// dial is for reconnect.Config.DialContext.
func (n *network) dial(ctx context.Context, kind, address string) (net.Conn, error) {
	if n.isCut() {
		return nil, errDown
	}
	conn, err := new(net.Dialer).DialContext(ctx, kind, address)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down {
		return nil, errors.Join(errDown, conn.Close())
	}
	n.conns = append(n.conns, conn)
	return conn, nil
}

// cut ends all connections, and lets none through until mend.
func (n *network) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = true
	for _, conn := range n.conns {
		_ = conn.Close()
	}
	n.conns = nil
}

func (n *network) mend() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = false
}

func (n *network) isCut() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.down
}
