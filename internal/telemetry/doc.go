// Package telemetry is what the module tells OpenTelemetry: the trace context in a message's headers, the spans of a publish
// and of a handler's call, and the metrics. It uses the API modules only; what becomes of it is up to the SDK that the
// program sets up, and without one nothing is done at all: a publish and a delivery then cost what they cost before.
//
// # Traces
//
// Names and attributes are those of the messaging semantic conventions, with the parts of RabbitMQ:
//
//	span                    kind      when
//	publish <destination>   producer  a Publish, or a message of a PublishBatch, from the call to its outcome, resends included
//	process <queue>         consumer  one call of a handler, or of a batch handler, until the settlement was decided
//
// The destination is the exchange, for the default exchange the routing key, which is the queue. A handler's span is the child
// of the context that the message carries; a batch handler's begins a trace, with a link to each message's. A message that
// carries a context keeps it when it is published, as a delayed copy, a dead letter or a row of an outbox does: the publish
// is then linked to it, or its child when the caller has no trace.
//
// # Headers
//
// The context goes into a table of ours, never into the caller's. It is left out when the message would get too large with it, as
// is any part of it (baggage, tracestate) of more than 8 KB; such a part of a message that comes is ignored, as is what is not
// a string or does not parse. No header can fail a publish or a handler.
//
// # Metrics
//
//	messaging.client.operation.duration  s          a publish, by destination and error.type
//	messaging.client.sent.messages       {message}  those that were sent, by the same
//	messaging.client.consumed.messages   {message}  settled, by queue and warren.outcome
//	messaging.process.duration           s          a handler's call, by queue and error.type
//	warren.publish.unconfirmed           {message}  sent, and not yet confirmed
//	warren.publish.callers               {call}     calls of Publish and PublishBatch that wait, for whatever it is
//	warren.connection.up                 1          1 when a link is connected and not blocked, by warren.link
//	warren.connection.reconnects         {connection}  after the first, by warren.link
//	warren.connection.blocked            s          time in which the broker blocked publishers, by warren.link
//	warren.consumer.not_now              s          time messages were kept after "not now", by queue
//	warren.queue.messages                {message}  ready in a queue that was asked for
//	warren.queue.consumers               {consumer} of it
//
// The number of destinations is bounded: what a program makes up for each call (a reply queue, a name out of a message) is
// counted together.
package telemetry
