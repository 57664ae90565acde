package reconnect

import (
	"encoding/binary"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/wire"
)

// Message is one message of a PublishBatch: where it goes and what it is.
type Message struct {
	Exchange, Key string
	amqp.Publishing
}

// validate returns every fault of m, before anything of it is sent.
func (p *Publisher) validate(m *Message) error {
	lim := wire.Limits{MaxBody: p.conn.cfg.MaxBody}
	if c := p.current.Load(); c != nil {
		lim.FrameMax = c.session.conn.Config.FrameSize
	}
	return wire.Publishing(m.Exchange, m.Key, &m.Publishing, lim)
}

// complete fills in what a message must have. The caller's own copy is not touched, nor are the headers, which the two
// share.
func (p *Publisher) complete(m *Message, now time.Time) {
	if m.MessageId == "" {
		m.MessageId = newMessageID(now)
	}
	if m.Timestamp.IsZero() {
		m.Timestamp = now
	}
	if m.DeliveryMode == 0 {
		m.DeliveryMode = amqp.Persistent
		if p.cfg.Transient {
			m.DeliveryMode = amqp.Transient
		}
	}
}

// newMessageID returns a UUIDv7 (RFC 9562, method 3: the fraction of the millisecond in rand_a). An id has to be unique,
// not secret: the runtime's ChaCha8 serves, which takes neither a lock nor a system call, as crypto/rand does for each.
func newMessageID(now time.Time) string {
	var id uuid.UUID
	nanos := uint64(now.UnixNano())
	milli, fraction := nanos/1e6, nanos%1e6
	binary.BigEndian.PutUint64(id[:8], milli<<16|7<<12|fraction<<12/1e6)
	binary.BigEndian.PutUint64(id[8:], 1<<63|rand.Uint64()>>2)
	return id.String()
}
