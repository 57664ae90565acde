//go:build !unix

package provide

import (
	"context"
	"errors"
)

var errUnix = errors.New("servers are run as processes of this machine on Unix only")

func startLocalRabbit(context.Context, nodeSpec) (*RabbitMQ, error) { return nil, errUnix }

func startLocalPostgres(context.Context) (*Postgres, error) { return nil, errUnix }
