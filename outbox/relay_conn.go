package outbox

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/warrenmq/warren/internal/backoff"
)

const (
	// quickTimeout bounds what should take a few milliseconds, the making of a connection included: a database that does not
	// answer by then is taken for lost.
	quickTimeout = 10 * time.Second

	// queryTimeout bounds a fetch by state, which may have to pass millions of dead rows, and the end of many rows.
	queryTimeout = time.Minute

	// hangUpTimeout bounds the good-bye on a connection.
	hangUpTimeout = 2 * time.Second
)

// dbBackoff is how a relay comes back to a database that it has lost.
var dbBackoff = backoff.Policy{Min: 50 * time.Millisecond, Max: 5 * time.Second}

// connect makes a connection of the relay's own, as the pool would.
func (r *Relay) connect(ctx context.Context) (*pgx.Conn, error) {
	pool := r.outbox.pool.Config()
	cfg := pool.ConnConfig
	if cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = "warren outbox relay"
	}
	if r.cfg.Lease > 0 && cfg.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		cfg.DefaultQueryExecMode = pgx.QueryExecModeExec // what one session has prepared the next one does not know
	}
	if pool.BeforeConnect != nil {
		if err := pool.BeforeConnect(ctx, cfg); err != nil {
			return nil, err
		}
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if pool.AfterConnect != nil {
		if err := pool.AfterConnect(ctx, conn); err != nil {
			hangUp(conn)
			return nil, err
		}
	}
	return conn, nil
}

// hangUp closes a connection, and so gives back what its session holds. It takes no part in the context that ended.
func hangUp(conn *pgx.Conn) {
	if conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), hangUpTimeout)
	defer cancel()
	_ = conn.Close(ctx)
}
