package provide

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"sync"

	"github.com/warrenmq/warren/internal/testenv/engine"
)

// Provider gives servers, and ends those it started when it is closed. It is safe for concurrent use.
type Provider struct {
	kind Kind // "": the first that is there

	mu      sync.Mutex
	helper  *helper // nil until a container is needed
	started []interface{ Remove() error }
}

// New returns a provider of the given kind; "" is that of WARREN_BROKER or, when that is unset, for each server the
// first kind that is there.
func New(kind Kind) (*Provider, error) {
	kind, err := chosen(kind)
	if err != nil {
		return nil, err
	}
	return &Provider{kind: kind}, nil
}

// Close ends all servers the provider started and deletes their data.
func (p *Provider) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, s := range p.started {
		errs = append(errs, s.Remove())
	}
	if p.helper != nil {
		errs = append(errs, p.helper.close())
	}
	p.started, p.helper = nil, nil
	return errors.Join(errs...)
}

// RabbitMQ returns the broker a parent process handed down or AMQP_URL names, else starts one, with the management API.
func (p *Provider) RabbitMQ(ctx context.Context) (*RabbitMQ, error) {
	if r := handedRabbitMQ(); r != nil {
		return r, nil
	}
	return first(p.kind.toTry("AMQP_URL"), func(kind Kind) (*RabbitMQ, error) {
		if kind == URL {
			return rabbitAt(os.Getenv("AMQP_URL"))
		}
		return p.startRabbit(ctx, kind, nodeSpec{plugins: sharedPlugins})
	})
}

// Node starts a broker of the caller's own that is quick to stop and to boot, for faults that hit the whole node. It has no
// management API. Kind url has none to give.
func (p *Provider) Node(ctx context.Context) (*RabbitMQ, error) {
	return first(p.kind.toTry("AMQP_URL"), func(kind Kind) (*RabbitMQ, error) {
		if kind == URL {
			return nil, errors.New("AMQP_URL names a broker that is not ours to break")
		}
		return p.startRabbit(ctx, kind, nodeSpec{plugins: nodePlugins})
	})
}

func (p *Provider) startRabbit(ctx context.Context, kind Kind, spec nodeSpec) (*RabbitMQ, error) {
	return start(p, func() (*RabbitMQ, error) {
		if kind == Local {
			return startLocalRabbit(ctx, spec)
		}
		image := cmp.Or(os.Getenv("WARREN_RABBITMQ_IMAGE"), rabbitImage)
		h, err := p.containers(ctx, image)
		if err != nil {
			return nil, err
		}
		return startContainerRabbit(ctx, h, image, spec)
	})
}

// Cluster starts a RabbitMQ cluster of so many nodes, in containers whatever the provider's kind is, for only there can
// they all come up under addresses of their own. The nodes have no management API.
func (p *Provider) Cluster(ctx context.Context, size int) (*Cluster, error) {
	return start(p, func() (*Cluster, error) {
		image := cmp.Or(os.Getenv("WARREN_RABBITMQ_IMAGE"), rabbitImage)
		h, err := p.containers(ctx, image)
		if err != nil {
			return nil, err
		}
		return startCluster(ctx, h, image, size)
	})
}

// Postgres returns the server a parent process handed down or DATABASE_URL names, else starts one.
func (p *Provider) Postgres(ctx context.Context) (*Postgres, error) {
	if os.Getenv(handedDatabaseURL) != "" {
		return p.handedPostgres()
	}
	return first(p.kind.toTry("DATABASE_URL"), func(kind Kind) (*Postgres, error) {
		if kind == URL {
			return postgresAt(os.Getenv("DATABASE_URL"))
		}
		return p.startPostgres(ctx, kind)
	})
}

// PostgresNode starts a server of the caller's own, for faults that hit the whole of it. Kind url has none to give.
func (p *Provider) PostgresNode(ctx context.Context) (*Postgres, error) {
	return first(p.kind.toTry("DATABASE_URL"), func(kind Kind) (*Postgres, error) {
		if kind == URL {
			return nil, errors.New("DATABASE_URL names a database that is not ours to break")
		}
		return p.startPostgres(ctx, kind)
	})
}

func (p *Provider) startPostgres(ctx context.Context, kind Kind) (*Postgres, error) {
	return start(p, func() (*Postgres, error) {
		if kind == Local {
			return startLocalPostgres(ctx)
		}
		image := postgresContainerImage()
		h, err := p.containers(ctx, image)
		if err != nil {
			return nil, err
		}
		return startContainerPostgres(ctx, h, image)
	})
}

func postgresContainerImage() string {
	return cmp.Or(os.Getenv("WARREN_POSTGRES_IMAGE"), postgresImage)
}

// containers returns the process that runs containers, once the engine has the image, and starts it when there is none.
// The engine is asked first: where it is missing, nothing is built for it.
func (p *Provider) containers(ctx context.Context, image string) (*helper, error) {
	e, err := engine.Find(ctx)
	if err != nil {
		return nil, err
	}
	if err := e.Ensure(ctx, image, func(what string) { fmt.Fprintln(os.Stderr, what) }); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.helper != nil {
		return p.helper, nil
	}
	h, err := startHelper()
	p.helper = h
	return h, err
}

// taken finds what Erlang, RabbitMQ, PostgreSQL and Docker say of a port that is not free.
var taken = regexp.MustCompile(`(?i)eaddrinuse|port_already_used|address already in use|port is already allocated`)

// start starts a server and has Close remove it. The ports are chosen before the server uses them, so another process
// may be faster: then it is tried again with others.
func start[S interface{ Remove() error }](p *Provider, start func() (S, error)) (S, error) {
	for attempt := 1; ; attempt++ {
		s, err := start()
		if err == nil {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.started = append(p.started, s)
			return s, nil
		}
		if attempt == 3 || !taken.MatchString(err.Error()) {
			return s, err
		}
	}
}

// rabbitAt returns the broker at a URL that somebody else runs.
func rabbitAt(rawURL string) (*RabbitMQ, error) {
	if rawURL == "" {
		return nil, errors.New("AMQP_URL is not set")
	}
	version, err := serverVersion(rawURL)
	if err != nil {
		return nil, fmt.Errorf("AMQP_URL: %w", err)
	}
	return &RabbitMQ{URL: rawURL, Version: version, Kind: URL}, nil
}
