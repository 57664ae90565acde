package coalesce_test

import (
	"fmt"
	"net"
	"sync"
	"testing"
)

// BenchmarkWrite compares a plain TCP conn with a coalescing one: many small writes, serialised by one mutex as the
// driver does, from 1 and from 16 goroutines.
func BenchmarkWrite(b *testing.B) {
	for _, writers := range []int{1, 16} {
		for _, kind := range []string{"plain", "coalesced"} {
			b.Run(fmt.Sprintf("%s/%d", kind, writers), func(b *testing.B) {
				near, far := tcpPair(b)
				drain(b, far)
				counted := &counting{Conn: near}
				var nc net.Conn = counted
				room := func() {}
				if kind == "coalesced" {
					c := newConn(b, counted)
					c.SetHeartbeat(beat)
					room = func() { _ = c.WaitRoom(b.Context()) }
					nc = c
				}
				benchmarkWriters(b, nc, writers, room)
				b.ReportMetric(float64(counted.writes.Load())/float64(b.N), "syscalls/op")
			})
		}
	}
}

func benchmarkWriters(b *testing.B, nc net.Conn, writers int, room func()) {
	b.ReportAllocs()
	var (
		driver sync.Mutex
		wg     sync.WaitGroup
	)
	for w := range writers {
		n := b.N / writers
		if w == 0 {
			n += b.N % writers
		}
		wg.Go(func() {
			msg := make([]byte, 330)
			for range n {
				room()
				driver.Lock()
				_, err := nc.Write(msg)
				driver.Unlock()
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// BenchmarkWaitRoom is what every publish pays when there is room.
func BenchmarkWaitRoom(b *testing.B) {
	near, far := tcpPair(b)
	drain(b, far)
	c := newConn(b, near)
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		_ = c.WaitRoom(ctx)
	}
}
