package outbox

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/headers"
	"github.com/warrenmq/warren/reconnect"
)

// row is a message as the tables have it: rowColumns, in their order.
type row struct {
	messageID   uuid.UUID
	exchange    string
	key         string
	orderingKey *string
	properties  []byte // JSON, nil when there are none
	headers     []byte // JSON, nil when there are none
	payload     []byte
	createdAt   time.Time // zero when it has none
}

// targets are what a query's rowColumns are scanned into.
func (r *row) targets() []any {
	return []any{&r.messageID, &r.exchange, &r.key, &r.orderingKey, &r.properties, &r.headers, &r.payload, (*moment)(&r.createdAt)}
}

// moment is a time that may be infinite, which is read as none: whoever else wrote a row, it must not stop those behind it.
type moment time.Time

// ScanTimestamptz is called by pgx.
func (m *moment) ScanTimestamptz(v pgtype.Timestamptz) error {
	*m = moment(v.Time) // zero when infinite
	return nil
}

// properties are the message's own, under the names of the AMQP specification. What is empty is not stored, and when all
// is, nothing is.
type properties struct {
	ContentType     string `json:"content_type,omitempty"`
	ContentEncoding string `json:"content_encoding,omitempty"`
	DeliveryMode    uint8  `json:"delivery_mode,omitempty"` // 0: what the relay's publisher sends by default, persistent
	Priority        uint8  `json:"priority,omitempty"`
	CorrelationID   string `json:"correlation_id,omitempty"`
	ReplyTo         string `json:"reply_to,omitempty"`
	Expiration      string `json:"expiration,omitempty"`
	Timestamp       *int64 `json:"timestamp,omitempty"` // seconds; without one the message has the time of its enqueueing
	Type            string `json:"type,omitempty"`
	AppID           string `json:"app_id,omitempty"`
}

// propertiesOf returns the properties of a checked message as JSON, nil when there are none.
func propertiesOf(msg *amqp.Publishing) ([]byte, error) {
	p := properties{
		ContentType: msg.ContentType, ContentEncoding: msg.ContentEncoding, DeliveryMode: msg.DeliveryMode,
		Priority: msg.Priority, CorrelationID: msg.CorrelationId, ReplyTo: msg.ReplyTo, Expiration: msg.Expiration,
		Type: msg.Type, AppID: msg.AppId,
	}
	if !msg.Timestamp.IsZero() {
		seconds := msg.Timestamp.Unix()
		p.Timestamp = &seconds
	}
	if p == (properties{}) {
		return nil, nil
	}
	return json.Marshal(p)
}

// headersOf returns the headers of a checked message as JSON, nil when there are none.
func headersOf(t amqp.Table) []byte {
	if len(t) == 0 {
		return nil
	}
	return headers.Append(nil, t)
}

// message returns what is to be sent for a row. It fails for a row that Enqueue did not write and that makes no sense;
// what could be read of it is returned all the same.
func (r *row) message() (reconnect.Message, error) {
	m := reconnect.Message{Exchange: r.exchange, Key: r.key, Publishing: amqp.Publishing{
		MessageId: r.messageID.String(),
		Timestamp: r.createdAt,
		Body:      r.payload,
	}}
	if r.properties != nil {
		var p properties
		if err := json.Unmarshal(r.properties, &p); err != nil {
			return m, fmt.Errorf("properties: %w", err)
		}
		p.fill(&m.Publishing)
	}
	if r.headers != nil {
		table, err := headers.Parse(r.headers)
		if err != nil {
			return m, fmt.Errorf("headers%w", err)
		}
		if len(table) > 0 {
			m.Headers = table
		}
	}
	return m, nil
}

func (p *properties) fill(msg *amqp.Publishing) {
	msg.ContentType, msg.ContentEncoding, msg.DeliveryMode = p.ContentType, p.ContentEncoding, p.DeliveryMode
	msg.Priority, msg.CorrelationId, msg.ReplyTo = p.Priority, p.CorrelationID, p.ReplyTo
	msg.Expiration, msg.Type, msg.AppId = p.Expiration, p.Type, p.AppID
	if p.Timestamp != nil {
		msg.Timestamp = time.Unix(*p.Timestamp, 0).UTC()
	}
}
