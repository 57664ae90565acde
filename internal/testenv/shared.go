package testenv

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/warrenmq/warren/internal/testenv/provide"
)

// startTime bounds the start of a server, the first build of the container helper and the pull of an image included.
const startTime = 5 * time.Minute

// hint ends the message of a test that found no broker or database.
const hint = "run `make setup`, which provides what is missing"

// owned is what this test binary started, or was handed, when a test first asked for it.
var owned struct {
	provider lazy[*provide.Provider]
	shared   lazy[*provide.RabbitMQ]
	node     lazy[*provide.RabbitMQ]
	postgres lazy[*provide.Postgres]
	database lazy[*provide.Postgres] // the one to break
}

// lazy is a server that is started by the first test that asks for it. A failed start is not tried again: it would
// fail every test anew, each after the longest wait.
type lazy[T any] struct {
	once  sync.Once
	value T
	err   error
}

func (l *lazy[T]) get(start func(context.Context) (T, error)) (T, error) {
	l.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startTime)
		defer cancel()
		l.value, l.err = start(ctx)
	})
	return l.value, l.err
}

// provider returns what gives this binary its servers.
func provider() (*provide.Provider, error) {
	return owned.provider.get(func(context.Context) (*provide.Provider, error) { return provide.New("") })
}

// stopAll ends what this binary started.
func stopAll() error {
	p, err := provider()
	if err != nil {
		return nil // then it started nothing, and every test that wanted something has said so
	}
	return p.Close()
}

// Shared returns the run's one broker: the one the suite handed down or AMQP_URL names, else one this binary starts
// on first use and Main stops. Tests share it, so they break nothing on it but what is their own.
func Shared(tb testing.TB) *Broker {
	tb.Helper()
	server, err := sharedServer()
	if err != nil {
		tb.Fatalf("no RabbitMQ for the tests: %v\n%s", err, hint)
	}
	return &Broker{server: server}
}

func sharedServer() (*provide.RabbitMQ, error) {
	p, err := provider()
	if err != nil {
		return nil, err
	}
	return owned.shared.get(func(ctx context.Context) (*provide.RabbitMQ, error) {
		r, err := p.RabbitMQ(ctx)
		if err == nil {
			watch(r.URL)
		}
		return r, err
	})
}
