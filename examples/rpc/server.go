package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/rpc"
)

// quote asks what something costs, price is the answer.
type (
	quote struct{ SKU string }
	price struct {
		Cents  int
		Server string // who worked it out
	}
)

type handler func(ctx context.Context, q quote) (price, error)

// answer returns a handler that needs some time.
func answer(name string, takes time.Duration) handler {
	return func(ctx context.Context, q quote) (price, error) {
		select {
		case <-time.After(takes):
			return price{Cents: 100 * len(q.SKU), Server: name}, nil
		case <-ctx.Done():
			return price{}, ctx.Err()
		}
	}
}

var errSoldOut = errors.New("sold out")

func fail(_ context.Context, q quote) (price, error) {
	return price{}, fmt.Errorf("%s: %w", q.SKU, errSoldOut)
}

// server is one server, usually in a process of its own; here it at least has a connection of its own.
type server struct {
	cable cable
	stop  func() error
}

// start runs a server, and returns when it is ready.
func (c *company) start(ctx context.Context, name string, h handler) error {
	_, err := c.startOne(ctx, name, h)
	return err
}

func (c *company) startOne(ctx context.Context, name string, h handler) (*server, error) {
	s := new(server)
	conn, err := reconnect.Dial(ctx, c.url, reconnect.Config{Name: "example-rpc-" + name, DialContext: s.cable.dial, Logger: c.logger()})
	if err != nil {
		return nil, err
	}
	r, err := rpc.NewServer(conn, c.queue, rpc.JSON(h), c.cfg)
	if err != nil {
		return nil, errors.Join(err, conn.Close(context.Background()))
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- r.Run(running) }()
	s.stop = sync.OnceValue(func() error {
		cancel()
		return errors.Join(<-ended, conn.Close(context.Background()))
	})
	c.servers = append(c.servers, s)
	select {
	case <-r.Ready():
		return s, nil
	case err := <-ended:
		ended <- nil
		return nil, errors.Join(fmt.Errorf("server %s ended", name), err)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// cable is what connects a server. Once it is cut, the server is as good as killed: nothing it does reaches anybody.
type cable struct {
	mu   sync.Mutex
	gone bool
	open []net.Conn
}

var errKilled = errors.New("killed")

func (c *cable) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return nil, errors.Join(errKilled, conn.Close())
	}
	c.open = append(c.open, conn)
	return conn, nil
}

func (c *cable) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true
	for _, conn := range c.open {
		_ = conn.Close()
	}
}
