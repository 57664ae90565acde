package main

import (
	"context"
	"errors"
	"net"
	"sync"
)

// cable is what lies between the tour and its broker. Cutting it works with every broker, whoever runs it: it is done on
// this side, to the sockets.
type cable struct {
	mu   sync.Mutex
	open map[*strand]struct{}
}

var errCut = errors.New("the tour has cut the cable")

// dial is for reconnect.Config.DialContext.
func (c *cable) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &strand{Conn: conn, cable: c, cut: make(chan struct{})}
	if c.open == nil {
		c.open = map[*strand]struct{}{}
	}
	c.open[s] = struct{}{}
	return s, nil
}

// cut breaks all connections, in the middle of whatever they carry, and returns how many there were.
func (c *cable) cut() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.open)
	for s := range c.open {
		close(s.cut)
		if tcp, ok := s.Conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // what is on its way is lost, and the broker gets a reset, no goodbye
		}
		_ = s.Conn.Close()
	}
	clear(c.open)
	return n
}

// strand is one connection.
type strand struct {
	net.Conn
	cable *cable
	cut   chan struct{} // closed when it is cut
}

func (s *strand) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	return n, s.why(err)
}

func (s *strand) Write(p []byte) (int, error) {
	n, err := s.Conn.Write(p)
	return n, s.why(err)
}

func (s *strand) Close() error {
	s.cable.mu.Lock()
	delete(s.cable.open, s)
	s.cable.mu.Unlock()
	return s.Conn.Close()
}

// why tells a cut from other errors, for the log.
func (s *strand) why(err error) error {
	select {
	case <-s.cut:
		if err != nil {
			return errCut
		}
	default:
	}
	return err
}
