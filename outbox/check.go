package outbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/wire"
)

const (
	maxOrderingKey = 255
	maxFaults      = 20 // of one call that are named

	jsonContentType = "application/json"
)

// entries checks messages and returns them ready to be stored. When any has a fault none is, and every fault is named, by
// the message's index and the field.
func (o *Outbox) entries(msgs []Message, trace map[string]string) ([]entry, error) {
	all := make([]entry, len(msgs))
	now := time.Now()
	turn := -1 // messages without a key stay together, in their order
	var faults []error
	more := 0
	for i, m := range msgs {
		e, err := o.entry(m, trace, now)
		if err != nil {
			if len(faults) < maxFaults {
				faults = append(faults, fmt.Errorf("message %d: %w", i, err))
			} else {
				more++
			}
			continue
		}
		if m.OrderingKey == "" && o.cfg.Lanes > 1 {
			if turn < 0 {
				turn = int(o.turn.Add(1) % uint32(o.cfg.Lanes))
			}
			e.lane = turn
		}
		all[i] = e
	}
	if more > 0 {
		faults = append(faults, fmt.Errorf("%d more messages with faults", more))
	}
	return all, errors.Join(faults...)
}

// entry checks one message. m is a copy, and its headers are only read.
func (o *Outbox) entry(m Message, trace map[string]string, now time.Time) (entry, error) {
	if err := errors.Join(encodeJSON(&m), o.check(&m, now)); err != nil {
		return entry{}, err
	}
	o.addTrace(&m, trace)
	e := entry{id: m.MessageId, exchange: m.Exchange, key: m.Key, body: m.Body}
	if e.id == "" {
		e.id = uuid.Must(uuid.NewV7()).String() // fails when the system has no randomness
	}
	if e.body == nil {
		e.body = []byte{} // nil would be NULL
	}
	if m.OrderingKey != "" {
		e.orderingKey = &m.OrderingKey
		e.lane = laneOf(m.OrderingKey, o.cfg.Lanes)
	}
	if m.NotBefore.After(now) {
		e.notBefore = m.NotBefore.Add(time.Microsecond - 1).Truncate(time.Microsecond) // what PostgreSQL keeps, never early
		if m.Timestamp.IsZero() {
			m.Timestamp = now // the row begins anew when it is due
		}
	}
	properties, err := propertiesOf(&m.Publishing)
	if err != nil {
		return entry{}, err
	}
	e.properties, e.headers = text(properties), text(headersOf(m.Headers))
	return e, nil
}

// encodeJSON makes the body of a message that has JSON.
func encodeJSON(m *Message) error {
	if m.JSON == nil {
		return nil
	}
	if m.Body != nil {
		return fault("Body", "not nil, beside JSON")
	}
	body, err := json.Marshal(m.JSON)
	if err != nil {
		return fault("JSON", "%v", err)
	}
	m.Body = body
	if m.ContentType == "" {
		m.ContentType = jsonContentType
	}
	return nil
}

// check returns every fault of a message.
func (o *Outbox) check(m *Message, now time.Time) error {
	faults := []error{
		wire.Publishing(m.Exchange, m.Key, &m.Publishing, wire.Limits{MaxBody: o.cfg.MaxBody}),
		checkID(m.MessageId),
	}
	if m.Exchange == "" && m.Key == "" && !hasCopies(m.Headers) {
		faults = append(faults, fault("Exchange, Key", "both empty: no queue can get it, the default exchange routes by the name of one"))
	}
	if m.UserId != "" {
		faults = append(faults, fault("UserId", "not empty: it would have to be the user of the relay's connection"))
	}
	if len(m.OrderingKey) > maxOrderingKey {
		faults = append(faults, fault("OrderingKey", "%d bytes, at most %d", len(m.OrderingKey), maxOrderingKey))
	}
	if m.NotBefore.After(now) && m.NotBefore.UTC().Year() > 9999 {
		faults = append(faults, fault("NotBefore", "after the year 9999"))
	}
	if err := errors.Join(faults...); err != nil {
		return err // headers that contain themselves end here
	}
	return checkTexts(m)
}

// hasCopies reports whether the headers CC or BCC name further keys: then there is a way without one.
func hasCopies(headers amqp.Table) bool {
	for _, name := range []string{"CC", "BCC"} {
		keys, _ := headers[name].([]any)
		for _, key := range keys {
			if key, _ := key.(string); key != "" {
				return true
			}
		}
	}
	return false
}

// checkID accepts an id that is the same when it has been a uuid in between.
func checkID(id string) error {
	if id == "" {
		return nil
	}
	parsed, err := uuid.Parse(id)
	if err != nil || parsed.String() != id {
		return fault("MessageId", "%.60q is not a UUID of 36 characters in lower case", id)
	}
	return nil
}

// laneOf is the same in every program and on every machine.
func laneOf(orderingKey string, lanes int) int {
	if lanes == 1 {
		return 0
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(orderingKey)) // never fails
	return int(h.Sum32() % uint32(lanes))
}

// checkTexts refuses what a text of PostgreSQL cannot hold, although the wire could: an error of the server would end the
// transaction in which it is raised.
func checkTexts(m *Message) error {
	var faults []error
	for _, t := range []struct{ field, value string }{
		{"Exchange", m.Exchange}, {"Key", m.Key}, {"OrderingKey", m.OrderingKey}, {"ContentType", m.ContentType},
		{"ContentEncoding", m.ContentEncoding}, {"CorrelationId", m.CorrelationId}, {"ReplyTo", m.ReplyTo},
		{"Type", m.Type}, {"AppId", m.AppId},
	} {
		if bad := badText(t.value); bad != "" {
			faults = append(faults, fault(t.field, "%s", bad))
		}
	}
	faults = checkTable(faults, "Headers", m.Headers)
	return errors.Join(faults...)
}

func checkTable(faults []error, path string, t amqp.Table) []error {
	for name, v := range t {
		at := path + "[" + strconv.Quote(name) + "]"
		if bad := badText(name); bad != "" {
			faults = append(faults, fault(at, "the name %s", bad))
		}
		faults = checkValue(faults, at, v)
	}
	return faults
}

func checkValue(faults []error, at string, v any) []error {
	switch v := v.(type) {
	case string:
		if bad := badText(v); bad != "" {
			faults = append(faults, fault(at, "%s; []byte may hold anything", bad))
		}
	case amqp.Table:
		faults = checkTable(faults, at, v)
	case []any:
		for i := range v {
			faults = checkValue(faults, at+"["+strconv.Itoa(i)+"]", v[i])
		}
	}
	return faults
}

// badText says why PostgreSQL does not take a text, "" when it does.
func badText(s string) string {
	switch {
	case strings.IndexByte(s, 0) >= 0:
		return "holds a NUL"
	case !utf8.ValidString(s):
		return "is not valid UTF-8"
	}
	return ""
}

func fault(field, format string, args ...any) error {
	return &wire.Error{Field: field, Problem: fmt.Sprintf(format, args...)}
}

// text returns JSON as an argument for a text, nil for none.
func text(b []byte) *string {
	if b == nil {
		return nil
	}
	s := string(b)
	return &s
}
