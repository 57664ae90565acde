package reconnect

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// nameServer answers every question about addresses with those it has been told last.
type nameServer struct {
	mu        sync.Mutex
	addresses []netip.Addr
	asked     int
	then      []netip.Addr // the answer from the second question on
}

// newNameServer makes the process ask it until the test ends. Nothing else may resolve names meanwhile, so the test is not
// parallel to others.
func newNameServer(t *testing.T) *nameServer {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &nameServer{}
	var serving sync.WaitGroup
	serving.Go(func() { s.serve(pc) })
	old := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", pc.LocalAddr().String())
	}}
	t.Cleanup(func() {
		net.DefaultResolver = old
		_ = pc.Close()
		serving.Wait()
	})
	return s
}

func (s *nameServer) set(addresses ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addresses = nil
	for _, a := range addresses {
		s.addresses = append(s.addresses, netip.MustParseAddr(a))
	}
}

// setOnce answers the first question with the one address, and the following ones with the other.
func (s *nameServer) setOnce(first, then string) {
	s.set(first)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.then = []netip.Addr{netip.MustParseAddr(then)}
}

func (s *nameServer) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

func (s *nameServer) serve(pc net.PacketConn) {
	buf := make([]byte, 512)
	for {
		n, from, err := pc.ReadFrom(buf)
		if err != nil {
			return
		}
		if n > 12 {
			_, _ = pc.WriteTo(s.answer(buf[:n]), from)
		}
	}
}

// answer makes a question (RFC 1035 section 4) into its answer: addresses for type A, nothing for others.
func (s *nameServer) answer(question []byte) []byte {
	end := 12
	for end < len(question) && question[end] != 0 {
		end += int(question[end]) + 1
	}
	end += 5 // the root label, type and class
	if end > len(question) {
		return nil
	}
	out := append([]byte(nil), question[:end]...)
	binary.BigEndian.PutUint16(out[2:], 0x8180) // a response, without error
	copy(out[6:12], make([]byte, 6))            // no records yet
	if binary.BigEndian.Uint16(question[end-4:]) != 1 {
		return out
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked++; s.asked > 1 && s.then != nil {
		s.addresses, s.then = s.then, nil
	}
	binary.BigEndian.PutUint16(out[6:], uint16(len(s.addresses)))
	for _, a := range s.addresses {
		out = append(out, 0xc0, 12, 0, 1, 0, 1, 0, 0, 14, 16, 0, 4) // the name asked for, A, IN, an hour, 4 bytes
		out = append(out, a.AsSlice()...)
	}
	return out
}

// P15: names are resolved at each round of dials, whatever their time to live, and all addresses of a name are tried in it.
func TestP15NamesAreResolvedAnew(t *testing.T) {
	dns := newNameServer(t)
	p := testenv.Proxy(t, testenv.Shared(t).URL())
	u, err := url.Parse(p.URL())
	require.NoError(t, err)
	u.Host = fmt.Sprintf("broker.warren.test.:%s", u.Port())

	dns.setOnce("127.0.0.9", "127.0.0.1") // where nobody listens; in the next round where somebody does
	c, log := dialed(t, u.String(), Config{BackoffMax: 100 * time.Millisecond})
	require.Contains(t, log.String(), "127.0.0.9")
	require.NoError(t, c.Ping(within(t, 5*time.Second)))

	// It moves while we are connected: nothing happens, and after the loss the new address is found.
	dns.set("127.0.0.9")
	require.NoError(t, c.Ping(within(t, 5*time.Second)))
	before := dns.count()
	require.Equal(t, 1, p.Cut())
	testenv.Eventually(t, 5*time.Second, func() bool { return dns.count() > before+1 }, "asked at each round")
	require.Error(t, c.Ping(t.Context()))
	dns.set("127.0.0.9", "127.0.0.8", "127.0.0.1", "127.0.0.7")
	testenv.Eventually(t, 5*time.Second, func() bool { return c.Ping(t.Context()) == nil }, "one of four addresses is enough")
	for range 3 {
		rounds := dns.count()
		require.Equal(t, 1, p.Cut())
		testenv.Eventually(t, 5*time.Second, func() bool { return c.Ping(t.Context()) == nil }, "connected again")
		require.Equal(t, rounds+1, dns.count(), "in the first round")
	}
}
