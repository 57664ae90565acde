package telemetry

import "go.opentelemetry.io/otel/attribute"

// scope is the name of the instrumentation.
const scope = "github.com/warrenmq/warren"

// Attributes of the semantic conventions, and our own.
const (
	keySystem         = attribute.Key("messaging.system")
	keyOperation      = attribute.Key("messaging.operation.name")
	keyOperationType  = attribute.Key("messaging.operation.type")
	keyDestination    = attribute.Key("messaging.destination.name")
	keyTemporary      = attribute.Key("messaging.destination.temporary")
	keyMessageID      = attribute.Key("messaging.message.id")
	keyConversationID = attribute.Key("messaging.message.conversation_id")
	keyBodySize       = attribute.Key("messaging.message.body.size")
	keyBatchCount     = attribute.Key("messaging.batch.message_count")
	keyRoutingKey     = attribute.Key("messaging.rabbitmq.destination.routing_key")
	keyDeliveryTag    = attribute.Key("messaging.rabbitmq.message.delivery_tag")
	keyErrorType      = attribute.Key("error.type")

	keyConnection  = attribute.Key("warren.connection.name")
	keyLink        = attribute.Key("warren.link")
	keyOutcome     = attribute.Key("warren.outcome")
	keyRedelivered = attribute.Key("warren.redelivered")
	keySentAgain   = attribute.Key("warren.sent_again")
)

var system = keySystem.String("rabbitmq")

// Metrics.
const (
	metricOperation   = "messaging.client.operation.duration"
	metricSent        = "messaging.client.sent.messages"
	metricConsumed    = "messaging.client.consumed.messages"
	metricProcess     = "messaging.process.duration"
	metricUnconfirmed = "warren.publish.unconfirmed"
	metricCallers     = "warren.publish.callers"
	metricUp          = "warren.connection.up"
	metricReconnects  = "warren.connection.reconnects"
	metricBlocked     = "warren.connection.blocked"
	metricNotNow      = "warren.consumer.not_now"
	metricMessages    = "warren.queue.messages"
	metricConsumers   = "warren.queue.consumers"
)

// buckets, in seconds, reach from a confirmation over a local network to a handler that takes as long as the broker lets it.
var buckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800}
