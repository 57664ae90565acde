package wire

import (
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Copy returns d as a message that can be published again: persistent, with the body, the properties and the headers
// that belong to the message. What the broker would misread or refuse on a second way is left out:
//
//   - Expiration, which would cut a delay short, and UserId, which may be another user's
//   - a ReplyTo that is the bare amq.rabbitmq.reply-to, which means nothing but on its requester's channel
//   - the headers CC and BCC, which would route further copies; x-delay; and what brokers have added: x-death,
//     x-first-death-*, x-last-death-*, x-delivery-count, x-acquired-count, x-stream-offset, x-routed-by, x-opt-*
//
// The table of headers is a new one, nil when nothing is left for it; values and body are shared with d.
func Copy(d amqp.Delivery) amqp.Publishing {
	msg := amqp.Publishing{
		Headers:         keep(d.Headers),
		ContentType:     d.ContentType,
		ContentEncoding: d.ContentEncoding,
		DeliveryMode:    amqp.Persistent,
		Priority:        d.Priority,
		CorrelationId:   d.CorrelationId,
		ReplyTo:         d.ReplyTo,
		MessageId:       d.MessageId,
		Timestamp:       d.Timestamp,
		Type:            d.Type,
		AppId:           d.AppId,
		Body:            d.Body,
	}
	if msg.ReplyTo == directReply {
		msg.ReplyTo = ""
	}
	return msg
}

// keep returns the headers that belong to the message.
func keep(t amqp.Table) amqp.Table {
	var kept amqp.Table
	for name, v := range t {
		if isBrokers(name) {
			continue
		}
		if kept == nil {
			kept = make(amqp.Table, len(t))
		}
		kept[name] = v
	}
	return kept
}

// isBrokers tells whether a header of that name was made by a broker, or speaks to one.
func isBrokers(name string) bool {
	switch name {
	case "CC", "BCC", "x-death", "x-delivery-count", "x-acquired-count", "x-stream-offset", "x-routed-by", "x-delay":
		return true
	}
	return strings.HasPrefix(name, "x-first-death-") || strings.HasPrefix(name, "x-last-death-") ||
		strings.HasPrefix(name, "x-opt-")
}
