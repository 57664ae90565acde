package testenv

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// A direction holds at most queued chunks of chunkSize on their way, which bounds what Delay can keep in flight.
const (
	chunkSize = 16 << 10
	queued    = 64
)

// link is one proxied connection. Four goroutines serve it: each direction reads and writes apart, so that a delay does
// not make it slow.
type link struct {
	toClient, toBroker *direction
	closed             chan struct{}
	closeOnce          sync.Once
}

// direction passes bytes from one socket to the other.
type direction struct {
	proxy    *FaultProxy
	link     *link
	from, to *net.TCPConn
	frozen   func(faults) bool
	chunks   chan chunk
}

// chunk is what one read gave, and when.
type chunk struct {
	data []byte
	read time.Time
}

func newLink(p *FaultProxy, client, broker *net.TCPConn) *link {
	l := &link{closed: make(chan struct{})}
	pass := func(from, to *net.TCPConn, frozen func(faults) bool) *direction {
		return &direction{proxy: p, link: l, from: from, to: to, frozen: frozen, chunks: make(chan chunk, queued)}
	}
	l.toClient = pass(broker, client, func(f faults) bool { return f.toClientFrozen })
	l.toBroker = pass(client, broker, func(f faults) bool { return f.toBrokerFrozen })
	return l
}

// run passes bytes both ways until both have ended or the link is closed.
func (l *link) run() {
	defer l.close()
	var running sync.WaitGroup
	for _, d := range []*direction{l.toClient, l.toBroker} {
		running.Go(d.read)
		running.Go(d.write)
	}
	running.Wait()
}

// close ends the link now; what is in flight is lost.
func (l *link) close() {
	l.closeOnce.Do(func() {
		close(l.closed)
		_ = l.toClient.to.Close()
		_ = l.toBroker.to.Close()
	})
}

// interrupt makes a read in progress return when the direction freezes, and lets reads wait again when it does not.
func (d *direction) interrupt(frozen bool) {
	deadline := time.Time{}
	if frozen {
		deadline = time.Unix(1, 0)
	}
	_ = d.from.SetReadDeadline(deadline)
}

// read takes chunks in until the sender has ended. It reads nothing while the direction is frozen, and nothing beyond
// what is queued while it is slow, so that the sender feels it.
func (d *direction) read() {
	defer close(d.chunks)
	for d.pass() {
		buf := make([]byte, chunkSize)
		n, err := d.from.Read(buf)
		if n > 0 {
			select {
			case d.chunks <- chunk{data: buf[:n], read: time.Now()}:
			case <-d.link.closed:
				return
			}
		}
		switch {
		case err == nil, errors.Is(err, os.ErrDeadlineExceeded):
		case errors.Is(err, io.EOF):
			return
		default:
			d.link.close() // a reset is passed on as one, as near as can be
			return
		}
	}
}

// write gives chunks out, each when it is due.
func (d *direction) write() {
	for c := range d.chunks {
		if !d.due(c) || !d.send(c.data) {
			return
		}
	}
	if d.pass() {
		_ = d.to.CloseWrite()
	}
}

// pass waits until the direction is not frozen. It returns false when the link is closed.
func (d *direction) pass() bool {
	for {
		f, changed := d.proxy.now()
		if !d.frozen(f) {
			return !d.isClosed()
		}
		select {
		case <-changed:
		case <-d.link.closed:
			return false
		}
	}
}

// due waits until the chunk has been delayed as long as it must be at present.
func (d *direction) due(c chunk) bool {
	for {
		f, changed := d.proxy.now()
		left := f.delay - time.Since(c.read)
		if left <= 0 {
			return !d.isClosed()
		}
		if !d.sleep(left, changed) {
			return false
		}
	}
}

// send writes data in pieces as large as the present rate allows in a 20th of a second.
func (d *direction) send(data []byte) bool {
	for len(data) > 0 {
		if !d.pass() {
			return false
		}
		f, changed := d.proxy.now()
		n := len(data)
		if f.rate > 0 {
			n = min(n, max(f.rate/20, 1))
		}
		if _, err := d.to.Write(data[:n]); err != nil {
			d.link.close()
			return false
		}
		data = data[n:]
		if f.rate > 0 && !d.sleep(time.Duration(n)*time.Second/time.Duration(f.rate), changed) {
			return false
		}
	}
	return true
}

// sleep waits for the time to pass or the faults to change. It returns false when the link is closed.
func (d *direction) sleep(t time.Duration, changed <-chan struct{}) bool {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-changed:
		return true
	case <-d.link.closed:
		return false
	}
}

func (d *direction) isClosed() bool {
	select {
	case <-d.link.closed:
		return true
	default:
		return false
	}
}
