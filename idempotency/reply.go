package idempotency

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/headers"
	"github.com/warrenmq/warren/internal/wire"
)

// HandleReply makes a handler of requests, such as a server of package rpc takes, of h: each request is worked on once, in a
// transaction of DoResult under the key of Config.Key, and the reply is stored in it. A request that comes again, because its
// caller did not get the reply or because it was delivered twice, is answered with the stored one, without h. For that the
// caller sends it again under its MessageId (rpc's Client.Idempotent). The same key with another type, content type or body is
// ErrKeyReused; the routing key is not looked at, for it is another one when a server has handed the request back.
//
// A refusal that would be the same each time is a reply. An error of h rolls back, is the answer this once, and h is called
// anew when the request comes again. A reply that is none on the wire is such an error, but for a body above the server's
// MaxBody, which is not known here. ErrBusy and a database that is away are such errors, also when it is open whether the
// work was committed, which the next request tells. Everything of the reply is kept, times to the second, but for
// CorrelationId, ReplyTo, UserId and Expiration, which are of the one message.
//
// HandleReply of a nil h, or of an Inbox without a pool, is nil, which the constructors of servers refuse.
func (b *Inbox) HandleReply(h func(ctx context.Context, tx pgx.Tx, d amqp.Delivery) (amqp.Publishing, error)) func(ctx context.Context, d amqp.Delivery) (amqp.Publishing, error) {
	if h == nil || b.pool == nil {
		return nil
	}
	return func(ctx context.Context, d amqp.Delivery) (amqp.Publishing, error) {
		var reply amqp.Publishing // the same whether it comes from h or from the table
		stored, err := b.DoResult(ctx, b.cfg.Key(d), fingerprint(d), func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			answer, err := h(ctx, tx, d)
			if err != nil {
				return nil, err
			}
			return encodeReply(answer)
		})
		if err == nil {
			reply, err = decodeReply(stored)
		}
		return reply, err
	}
}

// fingerprint tells requests apart. What differs between two sendings of one, deadlines among it, is not in it.
func fingerprint(d amqp.Delivery) []byte {
	hash := sha256.New()
	for _, part := range [][]byte{[]byte(d.Type), []byte(d.ContentType), d.Body} {
		hash.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		hash.Write(part)
	}
	return hash.Sum(nil)
}

// storedReply is a reply as a line of JSON; the body follows it as it is.
type storedReply struct {
	ContentType     string          `json:"content_type,omitempty"`
	ContentEncoding string          `json:"content_encoding,omitempty"`
	DeliveryMode    uint8           `json:"delivery_mode,omitempty"`
	Priority        uint8           `json:"priority,omitempty"`
	MessageID       string          `json:"message_id,omitempty"`
	Timestamp       *int64          `json:"timestamp,omitempty"` // seconds
	Type            string          `json:"type,omitempty"`
	AppID           string          `json:"app_id,omitempty"`
	Headers         json.RawMessage `json:"headers,omitempty"`
}

var errReply = errors.New("idempotency: the reply cannot be stored")

func encodeReply(p amqp.Publishing) ([]byte, error) {
	for _, text := range []string{p.ContentType, p.ContentEncoding, p.MessageId, p.Type, p.AppId} {
		if !utf8.ValidString(text) {
			return nil, fmt.Errorf("%w: %q is not valid UTF-8", errReply, text)
		}
	}
	p.CorrelationId, p.ReplyTo, p.UserId, p.Expiration = "", "", "", "" // of the one message
	if err := wire.Publishing("", "", &p, wire.Limits{MaxBody: -1}); err != nil {
		return nil, fmt.Errorf("%w: %w", errReply, err) // before the work is committed for a reply that nobody can get
	}
	s := storedReply{
		ContentType: p.ContentType, ContentEncoding: p.ContentEncoding, DeliveryMode: p.DeliveryMode, Priority: p.Priority,
		MessageID: p.MessageId, Type: p.Type, AppID: p.AppId,
	}
	if !p.Timestamp.IsZero() {
		seconds := p.Timestamp.Unix()
		s.Timestamp = &seconds
	}
	if len(p.Headers) > 0 {
		if bad, found := notUTF8(p.Headers); found {
			return nil, fmt.Errorf("%w: Headers: %q is not valid UTF-8", errReply, bad)
		}
		s.Headers = headers.Append(nil, p.Headers)
	}
	line, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errReply, err)
	}
	return append(append(line, '\n'), p.Body...), nil
}

func decodeReply(data []byte) (amqp.Publishing, error) {
	line, body, _ := bytes.Cut(data, []byte("\n"))
	var s storedReply
	if err := json.Unmarshal(line, &s); err != nil {
		return amqp.Publishing{}, fmt.Errorf("idempotency: the stored result is no reply of HandleReply: %w", err)
	}
	p := amqp.Publishing{
		ContentType: s.ContentType, ContentEncoding: s.ContentEncoding, DeliveryMode: s.DeliveryMode, Priority: s.Priority,
		MessageId: s.MessageID, Type: s.Type, AppId: s.AppID,
	}
	if len(body) > 0 {
		p.Body = body
	}
	if s.Timestamp != nil {
		p.Timestamp = time.Unix(*s.Timestamp, 0).UTC()
	}
	if s.Headers != nil {
		table, err := headers.Parse(s.Headers)
		if err != nil {
			return amqp.Publishing{}, fmt.Errorf("idempotency: stored reply: headers%w", err)
		}
		p.Headers = table
	}
	return p, nil
}

// notUTF8 finds a text in a table, or in what it holds, that JSON cannot keep.
func notUTF8(v any) (bad string, found bool) {
	switch v := v.(type) {
	case string:
		return v, !utf8.ValidString(v)
	case []any:
		for i := range v {
			if bad, found = notUTF8(v[i]); found {
				return bad, true
			}
		}
	case amqp.Table:
		for name, value := range v {
			if !utf8.ValidString(name) {
				return name, true
			}
			if bad, found = notUTF8(value); found {
				return bad, true
			}
		}
	}
	return "", false
}
