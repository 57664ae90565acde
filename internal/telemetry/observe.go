package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// Link is one connection to the broker, as it is now.
type Link struct {
	Role       string
	Up         bool    // connected, and not blocked
	Reconnects int64   // connections made after the first
	Blocked    float64 // seconds in which the broker blocked publishers, the present ones included
}

// Conn is what can be asked of a connection when metrics are collected. The functions must not block.
type Conn struct {
	Name        string
	Links       func() []Link
	Unconfirmed func() int64 // messages
	Callers     func() int64 // of publishes
}

// Observe has c asked whenever metrics are collected, until stop is called.
func (t *T) Observe(c Conn) (stop func()) {
	stop = func() {}
	defer t.contain(&t.metering)
	up, err := t.meter.Int64ObservableGauge(metricUp, metric.WithUnit("1"), metric.WithDescription("1 when the link is connected and not blocked."))
	handle(err)
	reconnects, err := t.meter.Int64ObservableCounter(metricReconnects, metric.WithUnit("{connection}"), metric.WithDescription("Connections made after the first."))
	handle(err)
	blocked, err := t.meter.Float64ObservableCounter(metricBlocked, metric.WithUnit("s"), metric.WithDescription("Time in which the broker blocked publishers."))
	handle(err)
	unconfirmed, err := t.meter.Int64ObservableUpDownCounter(metricUnconfirmed, metric.WithUnit("{message}"), metric.WithDescription("Messages sent and not yet confirmed."))
	handle(err)
	callers, err := t.meter.Int64ObservableUpDownCounter(metricCallers, metric.WithUnit("{call}"), metric.WithDescription("Publishes in progress, whatever they wait for."))
	handle(err)
	name := keyConnection.String(c.Name)
	whole := withAttributes(system, name)
	return t.register(func(_ context.Context, o metric.Observer) {
		for _, l := range c.Links() {
			attrs := withAttributes(system, name, keyLink.String(l.Role))
			o.ObserveInt64(up, number(l.Up), attrs)
			o.ObserveInt64(reconnects, l.Reconnects, attrs)
			o.ObserveFloat64(blocked, l.Blocked, attrs)
		}
		o.ObserveInt64(unconfirmed, c.Unconfirmed(), whole)
		o.ObserveInt64(callers, c.Callers(), whole)
	}, up, reconnects, blocked, unconfirmed, callers)
}

// Queue is the depth of a queue.
type Queue struct {
	Name                string
	Messages, Consumers int64
}

// ObserveQueues has look called whenever metrics are collected, until stop is called. It may block for as long as its context lets it;
// what it cannot find out it leaves out.
func (t *T) ObserveQueues(look func(ctx context.Context) []Queue) (stop func()) {
	stop = func() {}
	defer t.contain(&t.metering)
	messages, err := t.meter.Int64ObservableGauge(metricMessages, metric.WithUnit("{message}"), metric.WithDescription("Messages ready in the queue."))
	handle(err)
	consumers, err := t.meter.Int64ObservableGauge(metricConsumers, metric.WithUnit("{consumer}"), metric.WithDescription("Consumers of the queue."))
	handle(err)
	return t.register(func(ctx context.Context, o metric.Observer) {
		for _, q := range look(ctx) {
			attrs := withAttributes(system, keyDestination.String(q.Name))
			o.ObserveInt64(messages, q.Messages, attrs)
			o.ObserveInt64(consumers, q.Consumers, attrs)
		}
	}, messages, consumers)
}

func (t *T) register(f func(context.Context, metric.Observer), instruments ...metric.Observable) (stop func()) {
	r, err := t.meter.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		f(ctx, o)
		return nil
	}, instruments...)
	if err != nil {
		handle(err)
		return func() {}
	}
	return func() {
		defer t.contain(&t.metering)
		handle(r.Unregister())
	}
}

func withAttributes(attrs ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attrs...))
}

func number(is bool) int64 {
	if is {
		return 1
	}
	return 0
}
