package idempotency_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/warrenmq/warren/idempotency"
)

// meters counts what counters are given, by the name and the outcome.
type meters struct {
	noop.MeterProvider
	mu    sync.Mutex
	count map[string]int64
}

func (m *meters) Meter(string, ...metric.MeterOption) metric.Meter { return meter{of: m} }

type meter struct {
	noop.Meter
	of *meters
}

func (m meter) Int64Counter(name string, _ ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return counter{of: m.of, name: name}, nil
}

type counter struct {
	noop.Int64Counter
	of   *meters
	name string
}

func (c counter) Add(_ context.Context, n int64, options ...metric.AddOption) {
	attributes := metric.NewAddConfig(options).Attributes()
	outcome, _ := attributes.Value("warren.outcome")
	consumer, _ := attributes.Value(attribute.Key("warren.consumer"))
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.of.count[c.name+" "+consumer.AsString()+" "+outcome.AsString()] += n
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	m := &meters{count: map[string]int64{}}
	inbox := d.inbox("billing", idempotency.Config{MeterProvider: m, LockTimeout: -1})
	_, err := inbox.Do(t.Context(), "k", addA)
	require.NoError(t, err)
	require.NoError(t, inbox.DoBatch(t.Context(), []string{"k", "l", "l", "m"}, func(context.Context, pgx.Tx, []int) error { return nil }))
	_, err = inbox.Do(t.Context(), "", addA)
	require.Error(t, err)
	_, err = inbox.Do(t.Context(), "n", func(context.Context, pgx.Tx) error { return errors.New("fails") })
	require.Error(t, err)
	rival, err := d.pool.Begin(t.Context())
	require.NoError(t, err)
	defer rival.Rollback(context.Background())
	_, err = inbox.Claim(t.Context(), rival, "busy")
	require.NoError(t, err)
	_, err = inbox.Do(t.Context(), "busy", addA)
	require.ErrorIs(t, err, idempotency.ErrBusy)
	for _, call := range []func() error{
		func() error {
			_, err := inbox.Do(t.Context(), "n", func(context.Context, pgx.Tx) error { panic("work") })
			return err
		},
		func() error {
			return inbox.DoBatch(t.Context(), []string{"n", "o"}, func(context.Context, pgx.Tx, []int) error { panic("work") })
		},
		func() error {
			_, err := inbox.DoResult(t.Context(), "n", nil, func(context.Context, pgx.Tx) ([]byte, error) { panic("work") })
			return err
		},
	} {
		require.ErrorContains(t, recovering(call), "panic: work")
	}
	require.Equal(t, map[string]int64{
		"warren.inbox.keys billing fresh":     4, // one of them by Claim
		"warren.inbox.keys billing duplicate": 2,
		"warren.inbox.keys billing failed":    6, // four of them by panics
		"warren.inbox.keys billing not_now":   1,
	}, m.count)
}
