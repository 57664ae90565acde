package testenv

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/warrenmq/warren/internal/testenv/provide"
)

// startTime bounds the start of a server, a first build of the container helper included.
const startTime = 5 * time.Minute

// hint ends the message of a test that found no broker or database.
const hint = "run `make setup`, which provides what is missing"

// owned is what this test binary started, or was handed, on first use.
var owned struct {
	shared lazy[*provide.RabbitMQ]
	node   lazy[*provide.RabbitMQ]
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

// Shared returns the run's one broker: the one the suite handed down, else one this binary starts on first use and
// Main stops. Tests share it, so they break nothing on it but what is their own.
func Shared(tb testing.TB) *Broker {
	tb.Helper()
	server, err := owned.shared.get(provide.StartRabbitMQ)
	if err != nil {
		tb.Fatalf("no RabbitMQ for the tests: %v\n%s", err, hint)
	}
	return &Broker{server: server}
}

// stopAll ends what this binary started.
func stopAll() error {
	var errs []error
	for _, l := range []*lazy[*provide.RabbitMQ]{&owned.shared, &owned.node} {
		if l.value != nil {
			errs = append(errs, l.value.Remove())
		}
	}
	return errors.Join(errs...)
}
