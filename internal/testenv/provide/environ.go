package provide

import (
	"context"
	"os"
)

// The variables by which a process hands running servers down to its children. They are no interface for people, who
// set AMQP_URL and DATABASE_URL.
const (
	handedAMQPURL       = "WARREN_TEST_AMQP_URL"
	handedAMQPKind      = "WARREN_TEST_AMQP_KIND"
	handedAMQPVersion   = "WARREN_TEST_AMQP_VERSION"
	handedManagementURL = "WARREN_TEST_MANAGEMENT_URL"
	handedEvalAddress   = "WARREN_TEST_EVAL_ADDRESS"
	handedEvalToken     = "WARREN_TEST_EVAL_TOKEN"
	handedDatabaseURL   = "WARREN_TEST_DATABASE_URL"
	handedDatabaseKind  = "WARREN_TEST_DATABASE_KIND"
	handedDatabaseID    = "WARREN_TEST_DATABASE_CONTAINER"
)

// ContainersToo is the variable that is 1 when the suite also runs the tests on containers, in another pass. A test that
// needs containers then skips with a text that begins with LeftToContainers, and the suite sees to it that it ran there.
const (
	ContainersToo    = "WARREN_TEST_CONTAINERS_TOO"
	LeftToContainers = "runs on containers only: needs "
)

// handedRabbitMQ returns the broker a parent process handed down, nil when there is none.
func handedRabbitMQ() *RabbitMQ {
	rawURL := os.Getenv(handedAMQPURL)
	if rawURL == "" {
		return nil
	}
	return &RabbitMQ{
		URL:           rawURL,
		Kind:          Kind(os.Getenv(handedAMQPKind)),
		Version:       os.Getenv(handedAMQPVersion),
		ManagementURL: os.Getenv(handedManagementURL),
		eval:          evaluator{address: os.Getenv(handedEvalAddress), token: os.Getenv(handedEvalToken)},
	}
}

// environ returns what hands the broker down.
func (r *RabbitMQ) environ() []string {
	return []string{
		handedAMQPURL + "=" + r.URL,
		handedAMQPKind + "=" + string(r.Kind),
		handedAMQPVersion + "=" + r.Version,
		handedManagementURL + "=" + r.ManagementURL,
		handedEvalAddress + "=" + r.eval.address,
		handedEvalToken + "=" + r.eval.token,
	}
}

// handedPostgres returns the database server a parent process handed down.
func (p *Provider) handedPostgres() (*Postgres, error) {
	handed := &Postgres{URL: os.Getenv(handedDatabaseURL), Kind: Kind(os.Getenv(handedDatabaseKind))}
	switch handed.Kind {
	case Local:
		handed.signals = localBackends{}
	case Container:
		handed.signals = &handedContainer{provider: p, id: os.Getenv(handedDatabaseID)}
	}
	return handed, nil
}

// handedContainer is a container that a parent process runs. The engine lets any process run programs inside it.
type handedContainer struct {
	provider *Provider
	id       string
}

func (c *handedContainer) signalBackend(ctx context.Context, pid int, signal string) error {
	h, err := c.provider.containers(ctx, postgresContainerImage())
	if err != nil {
		return err
	}
	return (&container{helper: h, id: c.id}).signalBackend(ctx, pid, signal)
}

// environ returns what hands the database server down.
func (p *Postgres) environ() []string {
	id := ""
	if ctr, ok := p.machine.(*container); ok {
		id = ctr.id
	}
	return []string{
		handedDatabaseURL + "=" + p.URL,
		handedDatabaseKind + "=" + string(p.Kind),
		handedDatabaseID + "=" + id,
	}
}
