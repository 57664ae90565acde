package idempotency_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// countedPool counts the round trips to the database: how often something is sent after something was received.
type countedPool struct {
	pool  *pgxpool.Pool
	trips atomic.Int32
}

func newCountedPool(t *testing.T, d *db) *countedPool {
	t.Helper()
	c := &countedPool{}
	cfg, err := pgxpool.ParseConfig(d.url)
	require.NoError(t, err)
	cfg.MaxConns = 1
	cfg.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false } // after a second of idleness it would
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		return &countedConn{Conn: conn, trips: &c.trips}, err
	}
	c.pool, err = pgxpool.NewWithConfig(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(c.pool.Close)
	return c
}

func (c *countedPool) during(fn func()) int {
	c.trips.Store(0)
	fn()
	return int(c.trips.Load())
}

type countedConn struct {
	net.Conn
	trips *atomic.Int32
	sent  atomic.Bool // since something was received
}

func (c *countedConn) Write(b []byte) (int, error) {
	if !c.sent.Swap(true) {
		c.trips.Add(1)
	}
	return c.Conn.Write(b)
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.sent.Store(false)
	}
	return n, err
}
