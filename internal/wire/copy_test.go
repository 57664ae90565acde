package wire

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

func TestCopy(t *testing.T) {
	now := time.Now()
	d := amqp.Delivery{
		Headers: amqp.Table{
			"traceparent": "00-1", "warren-attempt": int64(2), "x-mine": "kept", "cc": "kept", "x-death-row": "kept",
			"CC": []any{"a"}, "BCC": []any{"b"}, "x-death": []any{amqp.Table{"count": int64(1)}}, "x-first-death-queue": "q",
			"x-first-death-reason": "rejected", "x-first-death-exchange": "", "x-last-death-queue": "q", "x-delivery-count": int64(1),
			"x-acquired-count": int64(1), "x-stream-offset": int64(1), "x-routed-by": "n", "x-delay": int32(1),
			"x-opt-rabbitmq-received-time": now, "x-opt-": 1,
		},
		ContentType: "ct", ContentEncoding: "ce", DeliveryMode: 1, Priority: 3, CorrelationId: "c", ReplyTo: "replies",
		Expiration: "100", MessageId: "m", Timestamp: now, Type: "t", UserId: "somebody", AppId: "a", Body: []byte("body"),
		ConsumerTag: "tag", DeliveryTag: 7, Redelivered: true, Exchange: "e", RoutingKey: "k",
	}
	before := len(d.Headers)
	msg := Copy(d)
	require.Equal(t, amqp.Publishing{
		Headers: amqp.Table{
			"traceparent": "00-1", "warren-attempt": int64(2), "x-mine": "kept", "cc": "kept", "x-death-row": "kept",
		},
		ContentType: "ct", ContentEncoding: "ce", DeliveryMode: 2, Priority: 3, CorrelationId: "c", ReplyTo: "replies",
		MessageId: "m", Timestamp: now, Type: "t", AppId: "a", Body: []byte("body"),
	}, msg)
	requireFaults(t, Publishing("", "q", &msg, Limits{User: "me"}))

	msg.Headers["new"] = 1
	require.Len(t, d.Headers, before, "the delivery's own table is left alone")
}

func TestCopyOfBareMessages(t *testing.T) {
	require.Equal(t, amqp.Publishing{DeliveryMode: 2}, Copy(amqp.Delivery{}))
	require.Equal(t, amqp.Publishing{DeliveryMode: 2}, Copy(amqp.Delivery{Headers: amqp.Table{"x-death": nil}}))
	require.Equal(t, amqp.Publishing{DeliveryMode: 2}, Copy(amqp.Delivery{ReplyTo: "amq.rabbitmq.reply-to"}))
	require.Equal(t, "amq.rabbitmq.reply-to.g2", Copy(amqp.Delivery{ReplyTo: "amq.rabbitmq.reply-to.g2"}).ReplyTo)
}
