package testenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"
)

// FaultProxy is a TCP proxy in front of a server, for faults of the network between. Faults hold for the connections
// that are open and for those that come, until Heal; they add up. Its methods may be called from any goroutine.
type FaultProxy struct {
	url      string
	upstream string
	listener net.Listener
	cancel   context.CancelFunc // of dials
	running  sync.WaitGroup

	mu      sync.Mutex
	faults  faults
	changed chan struct{} // closed, and replaced, when faults changes
	links   map[*link]struct{}
	closed  bool // no link is added any more
}

// faults is what the network does at present.
type faults struct {
	toClientFrozen, toBrokerFrozen bool
	refuse                         bool
	rate                           int // bytes a second, 0: no limit
	delay                          time.Duration
}

// Proxy puts a proxy in front of the server at rawURL, an AMQP or PostgreSQL address with a port, until the test ends.
func Proxy(tb testing.TB, rawURL string) *FaultProxy {
	tb.Helper()
	p, err := NewProxy(rawURL)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(p.Close)
	return p
}

// NewProxy is Proxy for a program that is no test, which closes it.
func NewProxy(rawURL string) (*FaultProxy, error) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Port() == "" {
		return nil, errors.New("a proxy needs a URL with host and port")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &FaultProxy{
		upstream: u.Host,
		listener: listener,
		cancel:   cancel,
		changed:  make(chan struct{}),
		links:    make(map[*link]struct{}),
	}
	u.Host = listener.Addr().String()
	p.url = u.String()
	p.running.Go(func() { p.accept(ctx) })
	return p, nil
}

// Close ends the proxy and all connections through it, and waits for their goroutines.
func (p *FaultProxy) Close() {
	p.cancel()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	_ = p.listener.Close()
	p.Cut()
	p.running.Wait()
}

// URL returns the server's URL with the proxy's address in it.
func (p *FaultProxy) URL() string { return p.url }

// Connections returns how many connections are open.
func (p *FaultProxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// Cut closes all open connections, both sides, and returns how many; new ones are taken.
func (p *FaultProxy) Cut() int {
	p.mu.Lock()
	open := make([]*link, 0, len(p.links))
	for l := range p.links {
		open = append(open, l)
		delete(p.links, l) // not when its goroutines get to it: the next Cut does not count it again
	}
	p.mu.Unlock()
	for _, l := range open {
		l.close()
	}
	return len(open)
}

// Refuse has new connections end as soon as they are accepted. Open ones stay.
func (p *FaultProxy) Refuse() { p.change(func(f *faults) { f.refuse = true }) }

// Freeze lets nothing pass either way: sockets stay open, and nothing is read from them, so that they fill up. New
// connections are accepted and hang.
func (p *FaultProxy) Freeze() {
	p.change(func(f *faults) { f.toClientFrozen, f.toBrokerFrozen = true, true })
}

// FreezeToClient lets nothing pass from the broker to the client: what is published arrives, its confirm does not.
func (p *FaultProxy) FreezeToClient() { p.change(func(f *faults) { f.toClientFrozen = true }) }

// FreezeToBroker lets nothing pass from the client to the broker: deliveries arrive, acks do not.
func (p *FaultProxy) FreezeToBroker() { p.change(func(f *faults) { f.toBrokerFrozen = true }) }

// Slow limits each direction of each connection to so many bytes a second.
func (p *FaultProxy) Slow(bytesPerSecond int) {
	p.change(func(f *faults) { f.rate = max(bytesPerSecond, 1) })
}

// Delay holds everything back for d, each way, without making it slower.
func (p *FaultProxy) Delay(d time.Duration) { p.change(func(f *faults) { f.delay = d }) }

// Heal ends all faults; what was held back passes.
func (p *FaultProxy) Heal() { p.change(func(f *faults) { *f = faults{} }) }

// change sets faults and wakes whatever waits for a change, readers in the middle of a read included.
func (p *FaultProxy) change(set func(*faults)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	set(&p.faults)
	close(p.changed)
	p.changed = make(chan struct{})
	for l := range p.links {
		l.toClient.interrupt(p.faults.toClientFrozen)
		l.toBroker.interrupt(p.faults.toBrokerFrozen)
	}
}

// now returns the present faults and a channel that is closed when they change.
func (p *FaultProxy) now() (faults, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults, p.changed
}

// accept takes connections until the listener is closed.
func (p *FaultProxy) accept(ctx context.Context) {
	for {
		client, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // the client gave up before it was accepted
		}
		p.running.Go(func() { p.serve(ctx, client.(*net.TCPConn)) })
	}
}

// serve connects a client to the broker and passes bytes until both directions have ended.
func (p *FaultProxy) serve(ctx context.Context, client *net.TCPConn) {
	defer client.Close()
	if f, _ := p.now(); f.refuse {
		return
	}
	broker, err := new(net.Dialer).DialContext(ctx, "tcp", p.upstream)
	if err != nil {
		return
	}
	defer broker.Close()
	l := newLink(p, client, broker.(*net.TCPConn))
	if !p.add(l) {
		return
	}
	defer p.drop(l)
	l.run()
}

// add notes an open link, unless the proxy is closed: then nobody would close the link any more.
func (p *FaultProxy) add(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.links[l] = struct{}{}
	l.toClient.interrupt(p.faults.toClientFrozen)
	l.toBroker.interrupt(p.faults.toBrokerFrozen)
	return true
}

func (p *FaultProxy) drop(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}
