package outbox

import (
	"context"
	"maps"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel/propagation"

	"github.com/warrenmq/warren/internal/wire"
)

// maxTraceField bounds one field of the trace context, in bytes: baggage beyond it is not worth carrying.
const maxTraceField = 8 << 10

// traceOf returns the fields by which ctx's trace goes on in whoever handles the messages.
func (o *Outbox) traceOf(ctx context.Context) map[string]string {
	fields := propagation.MapCarrier{}
	o.cfg.Propagator.Inject(ctx, fields)
	maps.DeleteFunc(fields, func(name, value string) bool {
		return len(value) > maxTraceField || badText(name) != "" || badText(value) != ""
	})
	return fields
}

// addTrace adds the fields to a message's headers, in a table of its own. A message that carries a trace already, as one
// does that is passed on, keeps that; one whose headers are full goes without.
func (o *Outbox) addTrace(m *Message, fields map[string]string) {
	if len(fields) == 0 || o.carriesTrace(m.Headers) {
		return
	}
	plain := m.Headers
	m.Headers = make(amqp.Table, len(plain)+len(fields))
	maps.Copy(m.Headers, plain)
	for name, value := range fields {
		m.Headers[name] = value
	}
	if wire.Publishing(m.Exchange, m.Key, &m.Publishing, wire.Limits{MaxBody: o.cfg.MaxBody}) != nil {
		m.Headers = plain
	}
}

func (o *Outbox) carriesTrace(headers amqp.Table) bool {
	if len(headers) == 0 {
		return false
	}
	for _, field := range o.cfg.Propagator.Fields() {
		if _, is := headers[field]; is {
			return true
		}
	}
	return false
}
