package wire

import (
	"errors"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// DefaultMaxBody is the largest body that RabbitMQ takes from 4.0 on, unless configured otherwise.
const DefaultMaxBody = 16 << 20

const (
	directReply = "amq.rabbitmq.reply-to"

	// maxExpiration is the broker's bound, ten years in milliseconds.
	maxExpiration = 315_360_000_000

	// fixedHeader is the size of a content header without properties: class, weight, body size and flags.
	fixedHeader = 2 + 2 + 8 + 2

	// frameOverhead is what a frame has beside its payload.
	frameOverhead = 8
)

// Limits are the bounds of Publishing that depend on the link. The zero value is the default.
type Limits struct {
	MaxBody     int    // bytes; 0: 16 MiB; less than 0: no limit
	FrameMax    int    // as negotiated, bytes; 0: unknown, at least 128 KiB
	User        string // of the link, the only UserId the broker takes; "": unknown, and UserId is not checked
	DirectReply bool   // the channel has a consumer on amq.rabbitmq.reply-to, so that ReplyTo may be that
	NoReplies   bool   // nothing goes to somebody's direct reply-to address, of which a forged one ends the connection (541)
}

// Publishing checks a message and its address, and returns all faults joined; the text of each begins with the field.
// Beside the fields' own rules the content header, which is all properties and headers together, must not exceed 64 KiB
// nor a frame. It allocates nothing when there is no fault, and does not keep or change msg.
func Publishing(exchange, key string, msg *amqp.Publishing, lim Limits) error {
	var f faults
	f.add(length("Exchange", exchange))
	f.add(validUTF8("Exchange", exchange)) // no exchange has such a name, and asking for it would end the connection
	f.add(length("Key", key))
	f.add(body(len(msg.Body), lim.MaxBody))
	f.add(expiration(msg.Expiration))
	if msg.DeliveryMode > amqp.Persistent {
		f.add(fault("DeliveryMode", "%d, must be 0, 1 or 2", msg.DeliveryMode))
	}
	if msg.UserId != "" && lim.User != "" && msg.UserId != lim.User {
		f.add(fault("UserId", "%s, but the link's user is %s", quote(msg.UserId), quote(lim.User)))
	}
	if msg.ReplyTo == directReply && !lim.DirectReply {
		f.add(fault("ReplyTo", "%s needs a consumer on the same channel, which this one has not", directReply))
	}
	if lim.NoReplies && exchange == "" {
		f.add(noReply(key, msg.Headers))
	}
	size := properties(&f, msg)
	if len(msg.Headers) > 0 {
		f.add(copies("CC", msg.Headers))
		f.add(copies("BCC", msg.Headers))
		f.add(headers(msg.Headers, lim.headerMax()-size))
	}
	return errors.Join(f...) // nil when there is none
}

// headerMax is the largest content header.
func (lim Limits) headerMax() int {
	if lim.FrameMax > 0 {
		return min(maxSize, lim.FrameMax-frameOverhead)
	}
	return maxSize
}

func headers(t amqp.Table, limit int) error {
	w := walker{root: "Headers", limit: limit}
	w.table(t, 0)
	return w.result()
}

// properties checks the length of each property and returns the size of the content header without the headers.
func properties(f *faults, msg *amqp.Publishing) int {
	size := fixedHeader +
		property(f, "ContentType", msg.ContentType) +
		property(f, "ContentEncoding", msg.ContentEncoding) +
		property(f, "CorrelationId", msg.CorrelationId) +
		property(f, "ReplyTo", msg.ReplyTo) +
		property(f, "Expiration", msg.Expiration) +
		property(f, "MessageId", msg.MessageId) +
		property(f, "Type", msg.Type) +
		property(f, "UserId", msg.UserId) +
		property(f, "AppId", msg.AppId)
	if msg.DeliveryMode > 0 {
		size++
	}
	if msg.Priority > 0 {
		size++
	}
	if !msg.Timestamp.IsZero() {
		size += 8
	}
	return size
}

// property checks the length of s and returns its encoded size; an empty property is not sent.
func property(f *faults, field, s string) int {
	if s == "" {
		return 0
	}
	f.add(length(field, s))
	return 1 + len(s)
}

func body(size, limit int) error {
	if limit == 0 {
		limit = DefaultMaxBody
	}
	if limit > 0 && size > limit {
		return fault("Body", "%d bytes, at most %d", size, limit)
	}
	return nil
}

// expiration checks that s is empty or a number of milliseconds in digits alone; the broker takes leading zeros.
func expiration(s string) error {
	n := int64(0)
	for i := range len(s) {
		c := s[i]
		if c < '0' || c > '9' {
			return fault("Expiration", "%s is not a number of milliseconds, digits only", quote(s))
		}
		if n = 10*n + int64(c-'0'); n > maxExpiration {
			return fault("Expiration", "%s ms, at most %d", quote(s), int64(maxExpiration))
		}
	}
	return nil
}

// copies checks a CC or BCC header: further routing keys, in an array, or the broker closes the channel.
func copies(name string, t amqp.Table) error {
	v, ok := t[name]
	if !ok {
		return nil
	}
	field := `Headers["` + name + `"]`
	keys, ok := v.([]any)
	if !ok {
		return fault(field, "%T, must be []any of routing keys", v)
	}
	for i, k := range keys {
		switch k := k.(type) {
		case string:
			if len(k) > maxShort {
				return fault(field, "routing key %d: %d bytes, at most %d", i, len(k), maxShort)
			}
		default:
			return fault(field, "routing key %d: %T, must be a string", i, k)
		}
	}
	return nil
}

// noReply checks that none of the queues which a message to the default exchange names is a direct reply-to address. Only an answer
// goes there, by whoever has taken the address apart.
func noReply(key string, headers amqp.Table) error {
	if strings.HasPrefix(key, directReply+".") {
		return fault("Key", "%s is a direct reply-to address", quote(key))
	}
	for _, name := range []string{"CC", "BCC"} {
		keys, _ := headers[name].([]any)
		for _, k := range keys {
			if k, ok := k.(string); ok && strings.HasPrefix(k, directReply+".") {
				return fault(`Headers["`+name+`"]`, "%s is a direct reply-to address", quote(k))
			}
		}
	}
	return nil
}
