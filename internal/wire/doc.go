// Package wire checks what is about to be sent, before a byte of it is written. Most mistakes in a message or a
// declaration are answered by the broker, or by amqp091-go itself, with the end of the channel or of the whole connection,
// which others use as well: a MessageId of 256 bytes, a header that is not a number, a CC header that is not a list.
// Here they become errors of the one call that made them.
//
// The rules are those of amqp091-go v1.16 (what its encoder takes, and what its decoder can read again: a consumer's
// connection ends at a header nested too deeply), and of RabbitMQ as tried on 3.10.8 and 4.0.5:
//
//	floats NaN, Inf                    connection closed, 541
//	invalid UTF-8 in a declared name   connection closed, 501, as in binding keys, consumer tags, passive declares
//	DeliveryMode above 2               channel closed, 406 (3.10)
//	CC, BCC that are not arrays        channel closed, 406
//	a forged direct reply-to address   connection closed, 541 (up to 4.1), as key or in CC, BCC to the default exchange
//	ReplyTo amq.rabbitmq.reply-to      channel closed, 406, where no direct reply consumer is
//	Expiration                         channel closed, 406, unless digits, up to 10 years in milliseconds
//	CR and LF in a name to declare     cut out silently, so that the entity has another name
//
// Accepted, since both take it and a copy of somebody else's message must be publishable: any bytes (NUL, invalid UTF-8)
// in header names and values, in properties and in routing keys; any time, before 1970 and after 9999, though fractions
// of a second are lost on the way; an empty header name.
//
// Everything is pure and safe for concurrent use. Every error is permanent (see Error).
package wire
