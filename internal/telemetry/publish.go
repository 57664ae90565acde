package telemetry

import (
	"context"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Publishing is a message on its way from the call to its outcome. The zero value tells nobody.
type Publishing struct {
	t     *T
	ctx   context.Context // the caller's, with the span
	span  trace.Span      // nil without tracing
	to    *destination    // nil when nothing is told
	began time.Time       // zero without metrics
	taken *carrier        // holds the headers that the message has now
	again int
}

// Publish begins with a message that is to go to exchange with key. Its headers are looked at only.
func (t *T) Publish(ctx context.Context, exchange, key string, headers amqp.Table) Publishing {
	tracing, metering := t.tracing.on(), t.metering.on()
	if !tracing && !metering {
		return Publishing{t: t, ctx: ctx}
	}
	p := Publishing{t: t, ctx: ctx, to: t.destinations.of(exchange, key)}
	if metering {
		p.began = time.Now()
	}
	if tracing {
		p.start(key, headers)
	}
	return p
}

func (p *Publishing) start(key string, headers amqp.Table) {
	opts := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(p.to.attrs...)}
	if key != "" && len(key) <= 255 {
		opts = append(opts, trace.WithAttributes(keyRoutingKey.String(valid(key))))
	}
	if own, found := p.t.extract(p.ctx, headers); found {
		carried := trace.SpanContextFromContext(own)
		if trace.SpanContextFromContext(p.ctx).IsValid() {
			opts = append(opts, trace.WithLinks(trace.Link{SpanContext: carried}))
		} else {
			p.ctx = trace.ContextWithSpanContext(p.ctx, carried)
		}
	}
	p.ctx, p.span = p.t.start(p.ctx, p.to.spanName, opts...)
}

// Inject gives msg the trace context, unless it carries one of its own, in a table that holds until End. It returns false when it
// changed nothing.
func (p *Publishing) Inject(msg *amqp.Publishing) bool {
	t := p.t
	if t == nil || !t.propagating.on() || p.taken != nil || t.carries(msg.Headers) {
		return false
	}
	c := t.inject(p.ctx, msg.Headers)
	if c == nil {
		return false
	}
	for name, value := range msg.Headers {
		c.out[name] = value
	}
	msg.Headers, p.taken = c.out, c
	return true
}

// Describe adds what is known once the message is complete.
func (p *Publishing) Describe(msg *amqp.Publishing) {
	p.t.on(p.span, func(span trace.Span) {
		attrs := []attribute.KeyValue{keyMessageID.String(valid(msg.MessageId)), keyBodySize.Int(len(msg.Body))}
		if msg.CorrelationId != "" {
			attrs = append(attrs, keyConversationID.String(valid(msg.CorrelationId)))
		}
		span.SetAttributes(attrs...)
	})
}

// Again notes that the message is sent again, because of why.
func (p *Publishing) Again(why error) {
	if p == nil {
		return
	}
	p.again++
	if p.span == nil {
		return
	}
	p.t.on(p.span, func(span trace.Span) {
		span.AddEvent("sent again", trace.WithAttributes(attribute.String("reason", cut(why.Error()))))
	})
}

// Told tells whether End needs to be told how it ended.
func (p *Publishing) Told() bool { return p.to != nil }

// End ends it, after which the message's headers must not be used any more. errorType is a word for err, empty for success; sent says
// that anything was sent. None of them matter unless Told.
func (p *Publishing) End(errorType string, err error, sent bool) {
	if p.taken != nil {
		p.t.release(p.taken)
		p.taken = nil
	}
	if p.to == nil {
		return
	}
	if !p.began.IsZero() {
		p.t.measurePublish(p.ctx, p.to, p.began, errorType, sent)
	}
	if p.span != nil {
		p.t.end(p.span, p.again, errorType, err)
	}
}

// Unsent tells of a message of a batch whose turn never came, begun at began.
func (t *T) Unsent(ctx context.Context, exchange, key, errorType string, began time.Time) {
	if t.metering.on() {
		t.measurePublish(ctx, t.destinations.of(exchange, key), began, errorType, false)
	}
}

func (t *T) measurePublish(ctx context.Context, to *destination, began time.Time, errorType string, sent bool) {
	m := to.measured(keyErrorType, errorType)
	t.record(ctx, t.operation, began, m)
	if sent {
		t.count(ctx, t.sent, 1, m)
	}
}

// end ends a span; its status is an error when there is a word for one.
func (t *T) end(span trace.Span, again int, errorType string, err error) {
	defer t.contain(&t.tracing)
	defer span.End() // in any case
	if again > 0 {
		span.SetAttributes(keySentAgain.Int(again))
	}
	if errorType != "" && span.IsRecording() {
		text := errorType
		if err != nil {
			text = cut(err.Error())
		}
		span.SetStatus(codes.Error, text)
		span.SetAttributes(keyErrorType.String(errorType))
	}
}

// cut shortens what may have any length.
func cut(s string) string {
	const enough = 1000
	if len(s) > enough {
		return strings.ToValidUTF8(s[:enough], "") + "…"
	}
	return valid(s)
}

// valid makes what may come from strangers into what an exporter can send: a byte that is no text would cost it all that goes with
// it.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
