package telemetry

import (
	"context"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// What becomes of a message that came: values of warren.outcome.
const (
	Acknowledged = "acknowledged"
	DeadLettered = "dead_lettered"
	Returned     = "returned" // handed back unhandled, or not done with
	Stale        = "stale"    // handled, but its channel was gone: it comes again
)

// Consumer is one queue's.
type Consumer struct {
	t    *T
	from *destination
}

// Consumer returns what tells of messages of a queue. The name is one that the program gives, not one made up for each run.
func (t *T) Consumer(queue string) *Consumer {
	return &Consumer{t: t, from: newDestination(queue, "process", "process")}
}

// Processing is one call of a handler. The zero value tells nobody.
type Processing struct {
	c     *Consumer
	ctx   context.Context
	span  trace.Span
	began time.Time
}

// Process begins a call of the handler with d and returns the context for it.
func (c *Consumer) Process(ctx context.Context, d *amqp.Delivery) (context.Context, Processing) {
	tracing, metering := c.t.tracing.on(), c.t.metering.on()
	own, found := c.t.extract(ctx, d.Headers)
	if !tracing && !metering {
		return own, Processing{}
	}
	p := Processing{c: c, ctx: own}
	if metering {
		p.began = time.Now()
	}
	if tracing {
		attrs := append(c.from.attrs[:len(c.from.attrs):len(c.from.attrs)],
			keyMessageID.String(valid(d.MessageId)), keyBodySize.Int(len(d.Body)), keyRoutingKey.String(valid(d.RoutingKey)),
			keyDeliveryTag.Int64(int64(d.DeliveryTag)))
		if d.CorrelationId != "" {
			attrs = append(attrs, keyConversationID.String(valid(d.CorrelationId)))
		}
		if d.Redelivered {
			attrs = append(attrs, keyRedelivered.Bool(true))
		}
		opts := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(attrs...)}
		if !found {
			opts = append(opts, trace.WithNewRoot()) // not a child of whatever runs the worker
		}
		p.ctx, p.span = c.t.start(own, c.from.spanName, opts...)
	}
	return p.ctx, p
}

// ProcessBatch begins a call of a batch handler with ds and returns the context for it.
func (c *Consumer) ProcessBatch(ctx context.Context, ds []amqp.Delivery) (context.Context, Processing) {
	tracing, metering := c.t.tracing.on(), c.t.metering.on()
	if !tracing && !metering {
		return ctx, Processing{}
	}
	p := Processing{c: c, ctx: ctx}
	if metering {
		p.began = time.Now()
	}
	if tracing {
		attrs := append(c.from.attrs[:len(c.from.attrs):len(c.from.attrs)], keyBatchCount.Int(len(ds)))
		p.ctx, p.span = c.t.start(ctx, c.from.spanName, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithNewRoot(),
			trace.WithAttributes(attrs...), trace.WithLinks(c.links(ds)...))
	}
	return p.ctx, p
}

// links are to the contexts that the messages carry.
func (c *Consumer) links(ds []amqp.Delivery) []trace.Link {
	var links []trace.Link
	for i := range ds {
		if own, found := c.t.extract(context.Background(), ds[i].Headers); found {
			links = append(links, trace.Link{SpanContext: trace.SpanContextFromContext(own),
				Attributes: []attribute.KeyValue{keyMessageID.String(valid(ds[i].MessageId))}})
		}
	}
	return links
}

// Told tells whether End needs to be told how the call ended.
func (p *Processing) Told() bool { return p.c != nil }

// Returned ends the time of the call; the span goes on until End. errorType is a word for the handler's error, empty for success.
func (p *Processing) Returned(errorType string) {
	if p.c != nil && !p.began.IsZero() {
		p.c.t.record(p.ctx, p.c.t.process, p.began, p.c.from.measured(keyErrorType, errorType))
	}
}

// End ends the span, with the handler's error.
func (p *Processing) End(errorType string, err error) {
	if p.span != nil {
		p.c.t.end(p.span, 0, errorType, err)
	}
}

// Settled counts n messages by what became of them.
func (c *Consumer) Settled(outcome string, n int) {
	if c != nil && n > 0 && c.t.metering.on() {
		c.t.count(context.Background(), c.t.consumed, int64(n), c.from.measured(keyOutcome, outcome))
	}
}

// NotNow counts time for which a worker has waited with what was told "not now".
func (c *Consumer) NotNow(waited time.Duration) {
	if c.t.metering.on() {
		defer c.t.contain(&c.t.metering)
		c.t.notNow.Add(context.Background(), waited.Seconds(), c.from.measured(keyOutcome, "").add...)
	}
}
