package idempotency

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// outcomes of a key, as the metric has them.
const (
	outcomeFresh     = "fresh"     // its function ran, and was committed
	outcomeDuplicate = "duplicate" // it was known
	outcomeNotNow    = "not_now"   // busy, or the database was away
	outcomeFailed    = "failed"    // its function failed, or the key was unusable
)

// metrics of an inbox.
type metrics struct {
	keys    metric.Int64Counter
	removed metric.Int64Counter
	by      map[string]metric.MeasurementOption // outcome: with the consumer
	mine    metric.MeasurementOption
}

func newMetrics(p metric.MeterProvider, consumer string) (metrics, error) {
	meter := p.Meter("github.com/warrenmq/warren")
	keys, err := meter.Int64Counter("warren.inbox.keys", metric.WithUnit("{key}"),
		metric.WithDescription("Keys that were claimed, by outcome: fresh, duplicate, not_now, failed."))
	removed, err2 := meter.Int64Counter("warren.inbox.removed", metric.WithUnit("{key}"),
		metric.WithDescription("Keys that were removed because they were older than the retention."))
	if err := errors.Join(err, err2); err != nil {
		return metrics{}, fmt.Errorf("MeterProvider: %w", err)
	}
	of := attribute.String("warren.consumer", consumer)
	m := metrics{keys: keys, removed: removed, mine: metric.WithAttributes(of), by: map[string]metric.MeasurementOption{}}
	for _, outcome := range []string{outcomeFresh, outcomeDuplicate, outcomeNotNow, outcomeFailed} {
		m.by[outcome] = metric.WithAttributes(of, attribute.String("warren.outcome", outcome))
	}
	return m, nil
}

func (m metrics) add(ctx context.Context, outcome string, n int) {
	if n > 0 {
		m.keys.Add(ctx, int64(n), m.by[outcome])
	}
}

// claimed counts a key whose transaction is the caller's: what becomes of that is not known here.
func (m metrics) claimed(ctx context.Context, fresh bool) {
	if fresh {
		m.add(ctx, outcomeFresh, 1)
	} else {
		m.add(ctx, outcomeDuplicate, 1)
	}
}

// ended counts n keys of which so many were fresh, and returns err.
func (m metrics) ended(ctx context.Context, n, fresh int, err error) error {
	switch {
	case err == nil:
		m.add(ctx, outcomeFresh, fresh)
		m.add(ctx, outcomeDuplicate, n-fresh)
	case isNotNow(err):
		m.add(ctx, outcomeNotNow, n)
	default:
		m.add(ctx, outcomeFailed, n)
	}
	return err
}
