package outbox

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Message is one message to enqueue: where it goes, what it is, and when it may leave.
type Message struct {
	// Exchange and Key are where it is published, each at most 255 bytes. An empty Exchange is the broker's default one,
	// for which Key is a queue's name. Without either no queue could get the message, and it is refused, unless the headers CC
	// or BCC name one.
	Exchange, Key string

	// OrderingKey picks the lane: messages of one key leave in the order in which they were enqueued, as long as those who
	// enqueue them wait for each other, as they do when each locks the row that the key stands for. At most 255 bytes.
	// Default: no key, any lane.
	OrderingKey string

	// NotBefore keeps the message from leaving earlier. It leaves within the relay's PollInterval after it, and in the order
	// of these times, not of its ordering key. Default: at once.
	NotBefore time.Time

	// JSON, when set, is encoded to become the body, with content type application/json unless another is given; Body must
	// then be nil.
	JSON any

	// Publishing is the message itself. MessageId must be a UUID in its usual form, 36 characters in lower case; when it is
	// empty a UUIDv7 is made. It is stored, and so the same however often the message is sent. Timestamp is the time of
	// enqueueing unless it is given. UserId must be empty: it would have to be the user of the relay's connection.
	amqp.Publishing
}
