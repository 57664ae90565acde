package idempotency_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/idempotency"
)

// brittle breaks connections: the one whose turn it is at the n-th read or write, and while it stays broken every other one.
type brittle struct {
	left   atomic.Int32 // reads and writes until it breaks; below 0: it has
	stays  atomic.Bool
	struck atomic.Bool
}

func (b *brittle) after(n int, stays bool) {
	b.struck.Store(false)
	b.stays.Store(stays)
	b.left.Store(int32(n))
}

func (b *brittle) heal() { b.after(1<<30, false) }

func (b *brittle) breaks() bool {
	n := b.left.Add(-1)
	if n == 0 || n < 0 && b.stays.Load() {
		b.struck.Store(true)
		return true
	}
	return false
}

type brittleConn struct {
	net.Conn
	of *brittle
}

func (c *brittleConn) Write(p []byte) (int, error) {
	if c.of.breaks() {
		_ = c.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return c.Conn.Write(p)
}

// Read breaks when what was to be read has arrived: what was asked for has happened by then.
func (c *brittleConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err == nil && c.of.breaks() {
		_ = c.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

func (b *brittle) pool(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	cfg.MaxConns = 1
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		return &brittleConn{conn, b}, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// A20, P63: the connection breaks at every single read and write of a call, once or for good. Broken once it is a success, for
// the call tries again; for good it is a "not now", and the next call finds out. The effect is there once, always.
func TestA20ConnectionBreaksAtEveryStep(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	b := &brittle{}
	b.heal()
	pool := b.pool(t, d.url)
	inbox, err := idempotency.New(pool, "billing", idempotency.Config{Logger: quiet})
	require.NoError(t, err)
	require.NoError(t, inbox.Migrate(t.Context()))
	for name, call := range map[string]func(key string) error{
		"Do": func(key string) error {
			_, err := inbox.Do(t.Context(), key, func(ctx context.Context, tx pgx.Tx) error { return add(ctx, tx, key) })
			return err
		},
		"DoBatch": func(key string) error {
			return inbox.DoBatch(t.Context(), []string{key, "other " + key}, func(ctx context.Context, tx pgx.Tx, _ []int) error { return add(ctx, tx, key) })
		},
		"DoResult": func(key string) error {
			result, err := inbox.DoResult(t.Context(), key, nil, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
				return []byte("of " + key), add(ctx, tx, key)
			})
			if err == nil && string(result) != "of "+key {
				t.Errorf("result of %s: %q", key, result)
			}
			return err
		},
		"StateCheck": func(key string) error {
			return idempotency.StateCheck(pool, func(ctx context.Context, tx pgx.Tx, d amqp.Delivery) error {
				tag, err := tx.Exec(ctx, "UPDATE accounts SET balance = 1 WHERE id = $1 AND balance < 1", key)
				if err == nil && tag.RowsAffected() == 0 {
					return idempotency.ErrDone
				}
				return err
			})(t.Context(), amqp.Delivery{})
		},
	} {
		for _, stays := range []bool{false, true} {
			steps := 0
			for struck := true; struck; steps++ {
				require.Less(t, steps, 100, "the call ends")
				key := fmt.Sprint(name, " ", stays, " ", steps)
				d.exec("INSERT INTO accounts VALUES ($1)", key)
				b.heal()
				require.NoError(t, pool.Ping(t.Context()))
				b.after(steps+1, stays)
				err := call(key)
				struck = b.struck.Load()
				b.heal()
				if stays && err != nil {
					require.True(t, notNow(err), "step %d of %s: %v", steps, name, err)
				} else {
					require.NoError(t, err, "step %d of %s", steps, name)
					require.Equal(t, 1, d.balance(key), "step %d of %s: told that it is done", steps, name)
				}
				require.NoError(t, call(key))
				require.Equal(t, 1, d.balance(key), "step %d of %s", steps, name)
			}
			t.Logf("%s, for good %t: broken at %d steps", name, stays, steps-1)
		}
	}
}
