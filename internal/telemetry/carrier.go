package telemetry

import (
	"context"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// maxField is how many bytes one header of a trace context may have: that is the limit of the baggage specification, and a stranger's
// should not grow what every further message of ours carries.
const maxField = 8 << 10

// carrier lets a propagator read a message's headers, and write into a table that is ours.
type carrier struct {
	in  amqp.Table // of the message; never written
	out amqp.Table // what was set, and used again: it is empty while nobody uses the carrier
}

var _ propagation.TextMapCarrier = (*carrier)(nil)

func newCarrier() *carrier { return &carrier{out: amqp.Table{}} }

// Get returns a header that is a string and not too long. Clients that write strings as bytes are understood, too.
func (c *carrier) Get(key string) string {
	switch v := c.in[key].(type) {
	case string:
		if len(v) <= maxField {
			return v
		}
	case []byte:
		if len(v) <= maxField {
			return string(v)
		}
	}
	return ""
}

// Set adds a header to ours, unless it is too long.
func (c *carrier) Set(key, value string) {
	if len(value) <= maxField {
		c.out[key] = value
	}
}

// Keys returns the names of the message's headers.
func (c *carrier) Keys() []string {
	keys := make([]string, 0, len(c.in))
	for key := range c.in {
		keys = append(keys, key)
	}
	return keys
}

func (t *T) carrier(headers amqp.Table) *carrier {
	c := t.carriers.Get().(*carrier)
	c.in = headers
	return c
}

func (t *T) release(c *carrier) {
	if len(c.out) > maxKept {
		return
	}
	c.in = nil
	clear(c.out)
	t.carriers.Put(c)
}

// maxKept is how many headers a table may have had to be used again: it does not shrink.
const maxKept = 64

// carries tells whether a message brings a context of its own along.
func (t *T) carries(headers amqp.Table) bool {
	if len(headers) == 0 || !t.propagating.on() {
		return false
	}
	for _, field := range t.fields() {
		if _, is := headers[field]; is {
			return true
		}
	}
	return false
}

// extract returns ctx with what headers carry. found says that this is the context of a span, which ctx then is a part of.
func (t *T) extract(ctx context.Context, headers amqp.Table) (own context.Context, found bool) {
	if !t.carries(headers) {
		return ctx, false
	}
	own = t.extracted(ctx, headers)
	sc := trace.SpanContextFromContext(own)
	return own, sc.IsRemote() && !sc.Equal(trace.SpanContextFromContext(ctx))
}
