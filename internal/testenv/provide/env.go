package provide

import (
	"context"
	"errors"
)

// Env is a running broker and a running database, for the suite's runner and for programs that are no tests.
type Env struct {
	AMQPURL       string
	ManagementURL string // "" where none is known
	DatabaseURL   string
	Kind          Kind   // of the broker
	Version       string // of the broker, such as "3.10.8"

	provider *Provider
	rabbit   *RabbitMQ
	postgres *Postgres
}

// Start starts, or finds, a broker and a database of the given kind; "" is that of WARREN_BROKER or, when that is
// unset, for each the first that is there.
func Start(ctx context.Context, kind Kind) (*Env, error) {
	p, err := New(kind)
	if err != nil {
		return nil, err
	}
	env := &Env{provider: p}
	if err := env.start(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return env, nil
}

// start brings up both at the same time.
func (e *Env) start(ctx context.Context) error {
	type result struct {
		database *Postgres
		err      error
	}
	done := make(chan result, 1)
	go func() {
		database, err := e.provider.Postgres(ctx)
		done <- result{database, err}
	}()
	rabbit, err := e.provider.RabbitMQ(ctx)
	postgres := <-done
	if err := errors.Join(wrap("RabbitMQ", err), wrap("PostgreSQL", postgres.err)); err != nil {
		return err
	}
	e.rabbit, e.postgres = rabbit, postgres.database
	e.AMQPURL, e.ManagementURL, e.Kind, e.Version = rabbit.URL, rabbit.ManagementURL, rabbit.Kind, rabbit.Version
	e.DatabaseURL = postgres.database.URL
	return nil
}

// Environ returns the variables that hand the broker and the database down to child processes: in one that has them
// package testenv uses these instead of starting its own, fault tools included, and starts nodes of the same kind.
func (e *Env) Environ() []string {
	environ := append(e.rabbit.environ(), e.postgres.environ()...)
	environ = append(environ, "WARREN_BROKER="+string(e.Kind))
	if helper, err := helperProgram(); err == nil && e.Kind == Container {
		environ = append(environ, helperVariable+"="+helper)
	}
	return environ
}

// Stop ends what Start started and deletes its data.
func (e *Env) Stop() error { return e.provider.Close() }
