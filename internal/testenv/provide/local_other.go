//go:build !unix

package provide

import (
	"context"
	"errors"
)

var errUnix = errors.New("servers are run as processes of this machine on Unix only")

func startLocalRabbit(context.Context, nodeSpec) (*RabbitMQ, error) { return nil, errUnix }

func startLocalPostgres(context.Context) (*Postgres, error) { return nil, errUnix }

// localBackends are processes that cannot be stopped here.
type localBackends struct{}

func (localBackends) signalBackend(context.Context, int, string) error { return errUnix }

// Pooler is a PgBouncer, which is started on Unix only.
type Pooler struct{ URL string }

// StartPooler fails here.
func StartPooler(context.Context, string, int) (*Pooler, error) { return nil, errUnix }

// Remove does nothing.
func (*Pooler) Remove() error { return nil }
