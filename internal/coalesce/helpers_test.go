package coalesce_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"math/big"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/warrenmq/warren/internal/coalesce"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must happen.
const patience = 10 * time.Second

// tcpPair returns the two ends of a TCP connection over loopback.
func tcpPair(tb testing.TB) (near, far *net.TCPConn) {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		nc, _ := l.Accept()
		accepted <- nc
	}()
	d := net.Dialer{Timeout: patience}
	nc, err := d.Dial("tcp", l.Addr().String())
	require.NoError(tb, err)
	peer := <-accepted
	require.NotNil(tb, peer)
	tb.Cleanup(func() { nc.Close(); peer.Close() })
	return nc.(*net.TCPConn), peer.(*net.TCPConn)
}

// tlsPair returns the two ends of a TLS connection over TCP, after the handshake.
func tlsPair(tb testing.TB) (near, far *tls.Conn) {
	tb.Helper()
	cert := selfSigned(tb)
	pool := x509.NewCertPool()
	pool.AddCert(cert.Leaf)
	a, b := tcpPair(tb)
	near = tls.Client(a, &tls.Config{RootCAs: pool, ServerName: "localhost"})
	far = tls.Server(b, &tls.Config{Certificates: []tls.Certificate{cert}})
	failed := make(chan error, 1)
	go func() { failed <- far.Handshake() }()
	require.NoError(tb, near.Handshake())
	require.NoError(tb, <-failed)
	return near, far
}

func selfSigned(tb testing.TB) tls.Certificate {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(tb, err)
	tmpl := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		DNSNames:              []string{"localhost"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	require.NoError(tb, err)
	leaf, err := x509.ParseCertificate(der)
	require.NoError(tb, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// newConn wraps nc and kills it at the end of the test.
func newConn(tb testing.TB, nc net.Conn) *coalesce.Conn {
	tb.Helper()
	c := coalesce.New(nc)
	tb.Cleanup(func() {
		c.Kill()
		require.NoError(tb, c.Close())
	})
	return c
}

// within fails the test when fn has not returned in time; it returns how long it took.
func within(tb testing.TB, limit time.Duration, what string, fn func()) time.Duration {
	tb.Helper()
	start := time.Now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn()
	}()
	select {
	case <-done:
	case <-time.After(limit):
		require.FailNow(tb, "did not return in time", "%s: %v", what, limit)
	}
	return time.Since(start)
}

// frame is a self-checking piece of the stream: writer, number, length, payload, checksum.
func frame(writer, number uint32, size int) []byte {
	b := make([]byte, 12+size+8)
	binary.BigEndian.PutUint32(b, writer)
	binary.BigEndian.PutUint32(b[4:], number)
	binary.BigEndian.PutUint32(b[8:], uint32(size))
	for i := range size {
		b[12+i] = byte(uint32(i)*7 + number + writer)
	}
	h := fnv.New64a()
	h.Write(b[:12+size])
	return h.Sum(b[:12+size])
}

// readFrames reads frames up to the end of r and checks each, and the order of each writer's. It returns their number.
func readFrames(r io.Reader) (int, error) {
	next := map[uint32]uint32{}
	head := make([]byte, 12)
	for n := 0; ; n++ {
		if _, err := io.ReadFull(r, head); err == io.EOF {
			return n, nil
		} else if err != nil {
			return n, err
		}
		writer, number := binary.BigEndian.Uint32(head), binary.BigEndian.Uint32(head[4:])
		rest := make([]byte, int(binary.BigEndian.Uint32(head[8:]))+8)
		if _, err := io.ReadFull(r, rest); err != nil {
			return n, err
		}
		h := fnv.New64a()
		h.Write(head)
		h.Write(rest[:len(rest)-8])
		if h.Sum64() != binary.BigEndian.Uint64(rest[len(rest)-8:]) {
			return n, fmt.Errorf("frame %d of writer %d is damaged", number, writer)
		}
		if number != next[writer] {
			return n, fmt.Errorf("writer %d: frame %d where %d was due", writer, number, next[writer])
		}
		next[writer]++
	}
}

// counting counts the writes that reach the socket.
type counting struct {
	net.Conn
	writes atomic.Int64
	sizes  func(int)
}

func (c *counting) Write(p []byte) (int, error) {
	c.writes.Add(1)
	if c.sizes != nil {
		c.sizes(len(p))
	}
	return c.Conn.Write(p)
}

// drain reads and discards what comes, until the end of nc.
func drain(tb testing.TB, nc net.Conn) {
	tb.Helper()
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = io.Copy(io.Discard, nc) })
	tb.Cleanup(func() {
		nc.Close()
		wg.Wait()
	})
}
