package provide

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// StartNode returns a broker for a program that is no test, such as an example: the one AMQP_URL names, of kind URL,
// or one that it starts, of the kind WARREN_BROKER asks for or the first that is there. The latter may be stopped and
// started again. Remove ends it.
func StartNode(ctx context.Context) (*RabbitMQ, error) {
	p, err := New("")
	if err != nil {
		return nil, err
	}
	r, err := first(p.kind.toTry("AMQP_URL"), func(kind Kind) (*RabbitMQ, error) {
		if kind == URL {
			return rabbitAt(os.Getenv("AMQP_URL"))
		}
		return p.startRabbit(ctx, kind, nodeSpec{plugins: nodePlugins})
	})
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	r.owner = p
	return r, nil
}

// ForExample is StartNode for a program that needs an address and nothing else; stop ends what was started for it.
func ForExample(ctx context.Context) (url string, stop func(), err error) {
	r, err := StartNode(ctx)
	if err != nil {
		return "", nil, err
	}
	return r.URL, func() {
		if err := r.Remove(); err != nil {
			fmt.Fprintln(os.Stderr, "stop the broker:", err)
		}
	}, nil
}

// StartDatabase returns an empty database for a program that is no test: one of its own on the server that DATABASE_URL
// names, of kind URL, or on a server that it starts, as StartNode does a broker. The latter may be stopped and started
// again. Remove of the server ends it, or drops the database.
func StartDatabase(ctx context.Context) (server *Postgres, url string, err error) {
	p, err := New("")
	if err != nil {
		return nil, "", err
	}
	server, err = first(p.kind.toTry("DATABASE_URL"), func(kind Kind) (*Postgres, error) {
		if kind == URL {
			return postgresAt(os.Getenv("DATABASE_URL"))
		}
		return p.startPostgres(ctx, kind)
	})
	if err != nil {
		return nil, "", errors.Join(err, p.Close())
	}
	server.owner = p
	if server.Kind != URL {
		return server, server.URL, nil
	}
	name := "warren_" + newToken()
	if url, err = server.CreateDatabase(ctx, name); err != nil {
		return nil, "", errors.Join(err, server.Remove())
	}
	server.made = name
	return server, url, nil
}
