package telemetry

import (
	"strings"
	"sync"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// maxDestinations bounds what is remembered, and told apart in metrics: names may come out of messages.
const maxDestinations = 1000

// Names that stand for many.
const (
	otherDestination     = "(other)"     // beyond maxDestinations
	invalidDestination   = "(invalid)"   // nothing can have that name
	temporaryDestination = "(temporary)" // the broker made the name up, for a reply or for a live subscription
)

// destination is where messages go to, or come from, with what is told of it prepared.
type destination struct {
	spanName string
	attrs    []attribute.KeyValue // of spans

	mu   sync.RWMutex
	made map[string]*measured // by the value of the attribute that says how it ended
}

// measured holds the options of a measurement: made anew for each they would be most of its cost.
type measured struct {
	record []metric.RecordOption
	add    []metric.AddOption
}

func newDestination(name, operation, operationType string) *destination {
	attrs := []attribute.KeyValue{system, keyOperation.String(operation), keyOperationType.String(operationType), keyDestination.String(name)}
	d := &destination{spanName: operation + " " + name, attrs: attrs, made: map[string]*measured{}}
	if name == temporaryDestination {
		d.attrs = append(d.attrs, keyTemporary.Bool(true))
	}
	return d
}

// measured returns the options for an end that key says more about, unless the value is empty. The values are few.
func (d *destination) measured(key attribute.Key, value string) *measured {
	d.mu.RLock()
	m := d.made[value]
	d.mu.RUnlock()
	if m != nil {
		return m
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if m := d.made[value]; m != nil {
		return m
	}
	attrs := append([]attribute.KeyValue(nil), d.attrs...)
	if value != "" {
		attrs = append(attrs, key.String(value))
	}
	set := metric.WithAttributeSet(attribute.NewSet(attrs...))
	m = &measured{[]metric.RecordOption{set}, []metric.AddOption{set}}
	d.made[value] = m
	return m
}

// destinations are those of publishes.
type destinations struct {
	mu                sync.RWMutex
	exchanges, queues map[string]*destination
	few               map[string]*destination // those that stand for many
}

func (ds *destinations) init() {
	ds.exchanges, ds.queues, ds.few = map[string]*destination{}, map[string]*destination{}, map[string]*destination{}
	for _, name := range []string{otherDestination, invalidDestination, temporaryDestination} {
		ds.few[name] = newDestination(name, "publish", "send")
	}
}

// of returns the destination of a publish.
func (ds *destinations) of(exchange, key string) *destination {
	known, name := ds.exchanges, exchange
	if exchange == "" {
		known, name = ds.queues, key
	}
	ds.mu.RLock()
	d := known[name]
	ds.mu.RUnlock()
	if d != nil {
		return d
	}
	switch {
	case len(name) > 255 || !utf8.ValidString(name) || name == "" && len(key) > 255:
		return ds.few[invalidDestination]
	case exchange == "" && strings.HasPrefix(name, "amq."):
		return ds.few[temporaryDestination]
	}
	ds.mu.Lock()
	defer ds.mu.Unlock()
	if d := known[name]; d != nil {
		return d
	}
	if len(ds.exchanges)+len(ds.queues) >= maxDestinations {
		return ds.few[otherDestination]
	}
	d = newDestination(name, "publish", "send")
	known[strings.Clone(name)] = d
	return d
}
