package provide

import (
	"context"
	"fmt"

	"github.com/warrenmq/warren/internal/testenv/secret"
)

const postgresPort = 5432

// startContainerPostgres runs PostgreSQL in a container.
func startContainerPostgres(ctx context.Context, h *helper, image string) (*Postgres, error) {
	free, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	password := secret.New()
	ctr, err := runContainer(ctx, h, containerSpec{
		Image: image,
		Ports: map[int]int{postgresPort: free[0]},
		Env: map[string]string{
			"POSTGRES_USER": postgresUser, "POSTGRES_PASSWORD": password, "POSTGRES_DB": "postgres", "POSTGRES_INITDB_ARGS": "--no-sync",
		},
		Cmd: []string{"postgres", "-c", "max_connections=300"},
	})
	if err != nil {
		return nil, fmt.Errorf("run PostgreSQL in a container: %w", err)
	}
	p := &Postgres{URL: postgresURL(free[0], password), Kind: Container, machine: ctr, signals: ctr}
	if err := p.serve(ctx); err != nil {
		_ = p.Remove() // the first error says more
		return nil, err
	}
	return p, nil
}
