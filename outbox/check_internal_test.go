package outbox

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/warrenmq/warren/internal/headers"
)

func publishing(change func(*amqp.Publishing)) Message {
	m := Message{Key: "k"}
	change(&m.Publishing)
	return m
}

func header(v any) Message {
	return publishing(func(p *amqp.Publishing) { p.Headers = amqp.Table{"a": v} })
}

// TestFaults: whatever the wire, PostgreSQL or the relay would not take is refused before any of them is asked.
func TestFaults(t *testing.T) {
	box, err := New(nil, Config{MaxBody: 1000})
	require.NoError(t, err)
	itself := amqp.Table{}
	itself["itself"] = itself
	for name, tt := range map[string]struct {
		msg  Message
		want string // how the fault begins
	}{
		"long exchange":        {Message{Exchange: strings.Repeat("x", 256)}, "Exchange: 256 bytes"},
		"long key":             {Message{Key: strings.Repeat("x", 300)}, "Key: 300 bytes"},
		"long ordering key":    {Message{OrderingKey: strings.Repeat("x", 256)}, "OrderingKey: 256 bytes"},
		"NUL in exchange":      {Message{Exchange: "\x00"}, "Exchange: holds a NUL"},
		"NUL in key":           {Message{Key: "\x00"}, "Key: holds a NUL"},
		"NUL in ordering key":  {Message{OrderingKey: "\x00"}, "OrderingKey: holds a NUL"},
		"invalid key":          {Message{Key: "\xff"}, "Key: is not valid UTF-8"},
		"surrogate in key":     {Message{Key: "\xed\xa0\x80"}, "Key: is not valid UTF-8"},
		"invalid ordering key": {Message{OrderingKey: "\xff"}, "OrderingKey: is not valid UTF-8"},
		"long body":            {publishing(func(p *amqp.Publishing) { p.Body = make([]byte, 1001) }), "Body: 1001 bytes, at most 1000"},
		"long JSON":            {Message{JSON: strings.Repeat("x", 999)}, "Body: 1001 bytes, at most 1000"},
		"body beside JSON":     {Message{JSON: 1, Publishing: amqp.Publishing{Body: []byte{}}}, "Body: not nil"},
		"what JSON cannot":     {Message{JSON: math.NaN()}, "JSON: json: unsupported value"},
		"user":                 {publishing(func(p *amqp.Publishing) { p.UserId = "guest" }), "UserId: not empty"},
		"id is no UUID":        {publishing(func(p *amqp.Publishing) { p.MessageId = "42" }), "MessageId: "},
		"id in upper case":     {publishing(func(p *amqp.Publishing) { p.MessageId = "0197F3E2-0000-7000-8000-00000000000A" }), "MessageId: "},
		"id in braces":         {publishing(func(p *amqp.Publishing) { p.MessageId = "{" + uuid.NewString() + "}" }), "MessageId: "},
		"delivery mode":        {publishing(func(p *amqp.Publishing) { p.DeliveryMode = 3 }), "DeliveryMode: 3"},
		"expiration":           {publishing(func(p *amqp.Publishing) { p.Expiration = "1s" }), "Expiration: "},
		"direct reply":         {publishing(func(p *amqp.Publishing) { p.ReplyTo = "amq.rabbitmq.reply-to" }), "ReplyTo: "},
		"long type":            {publishing(func(p *amqp.Publishing) { p.Type = strings.Repeat("x", 256) }), "Type: 256 bytes"},
		"NUL in type":          {publishing(func(p *amqp.Publishing) { p.Type = "\x00" }), "Type: holds a NUL"},
		"NUL in app id":        {publishing(func(p *amqp.Publishing) { p.AppId = "\x00" }), "AppId: holds a NUL"},
		"NUL in correlation":   {publishing(func(p *amqp.Publishing) { p.CorrelationId = "\x00" }), "CorrelationId: holds a NUL"},
		"NUL in content type":  {publishing(func(p *amqp.Publishing) { p.ContentType = "\x00" }), "ContentType: holds a NUL"},
		"NUL in encoding":      {publishing(func(p *amqp.Publishing) { p.ContentEncoding = "\x00" }), "ContentEncoding: holds a NUL"},
		"NUL in reply-to":      {publishing(func(p *amqp.Publishing) { p.ReplyTo = "\x00" }), "ReplyTo: holds a NUL"},
		"kind of header":       {header(uint64(1)), `Headers["a"]: uint64 cannot be sent`},
		"NaN header":           {header(math.NaN()), `Headers["a"]: NaN`},
		"NUL in header":        {header("\x00"), `Headers["a"]: holds a NUL`},
		"invalid header":       {header(amqp.Table{"b": []any{"", "\xff"}}), `Headers["a"]["b"][1]: is not valid UTF-8`},
		"name of header":       {header(amqp.Table{"b\x00": 1}), `Headers["a"]["b\x00"]: the name holds a NUL`},
		"header in itself":     {header(itself), `Headers["a"]["itself"]`},
		"large headers":        {header(strings.Repeat("x", 64<<10)), `Headers: larger than`},
		"CC":                   {publishing(func(p *amqp.Publishing) { p.Headers = amqp.Table{"CC": "a"} }), `Headers["CC"]: `},
		"too late":             {Message{NotBefore: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}, "NotBefore: after the year 9999"},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.msg.Exchange == "" && tt.msg.Key == "" {
				tt.msg.Key = "k"
			}
			_, err := box.entries([]Message{{Key: "k"}, tt.msg}, nil)
			require.ErrorContains(t, err, "message 1: "+tt.want)
			require.NotContains(t, err.Error(), "message 0")
			require.True(t, isPermanent(err))
		})
	}
}

// TestWithoutADestination: a message that no exchange could ever route is refused by every way in, named by its fields, and
// before anything is said to the database. What the Publisher is given is another thing: there the broker's answer is at hand.
func TestWithoutADestination(t *testing.T) {
	box, err := New(nil, Config{})
	require.NoError(t, err)
	copies := func(name string, to ...any) Message {
		return Message{Publishing: amqp.Publishing{Headers: amqp.Table{name: to}}}
	}
	for name, m := range map[string]Message{
		"nothing": {}, "a body": {JSON: 1}, "a lane": {OrderingKey: "k"}, "a time": {NotBefore: time.Now().Add(time.Hour)},
		"no copies": copies("CC"), "copies to nowhere": copies("BCC", ""), "another header": copies("cc", "q"),
	} {
		err := box.EnqueueBatch(new(pgx.Batch), Message{Key: "k"}, m)
		require.ErrorContains(t, err, "message 1: Exchange, Key: both empty", name)
		require.True(t, isPermanent(err), name)
		require.NotContains(t, err.Error(), "message 0", name)
	}
	for name, m := range map[string]Message{
		"a queue": {Key: "q"}, "an exchange that needs no key": {Exchange: "e"}, "copies": copies("CC", "", "q"), "hidden copies": copies("BCC", "q"),
	} {
		require.NoError(t, box.EnqueueBatch(new(pgx.Batch), m), name)
	}
}

// TestAllFaultsAtOnce names every message, up to a limit that keeps the error readable.
func TestAllFaultsAtOnce(t *testing.T) {
	box, err := New(nil, Config{})
	require.NoError(t, err)
	_, err = box.entries([]Message{{Key: "\x00"}, {Key: "k"}, {Exchange: "\xff", JSON: math.NaN(), Publishing: amqp.Publishing{UserId: "x"}}}, nil)
	for _, want := range []string{"message 0: Key: ", "message 2: JSON: ", "Exchange: ", "UserId: "} {
		require.ErrorContains(t, err, want)
	}
	many := make([]Message, 100)
	for i := range many {
		many[i].Key = "\x00"
	}
	_, err = box.entries(many, nil)
	require.ErrorContains(t, err, "message 19: ")
	require.NotContains(t, err.Error(), "message 20: ")
	require.ErrorContains(t, err, "80 more")
}

// TestAccepted: what looks strange and is not.
func TestAccepted(t *testing.T) {
	box, err := New(nil, Config{MaxBody: -1})
	require.NoError(t, err)
	for name, m := range map[string]Message{
		"nothing else":   {Key: "k"},
		"bytes":          header([]byte{0, 0xff}),
		"every kind":     publishing(func(p *amqp.Publishing) { p.Headers = everyKind() }),
		"255 bytes":      {Exchange: strings.Repeat("x", 255), Key: strings.Repeat("y", 255), OrderingKey: strings.Repeat("z", 255)},
		"any body":       publishing(func(p *amqp.Publishing) { p.Body = make([]byte, 17<<20) }),
		"a v4 id":        publishing(func(p *amqp.Publishing) { p.MessageId = uuid.New().String() }),
		"always due":     {Key: "k", NotBefore: time.Date(-10000, 1, 1, 0, 0, 0, 0, time.UTC)},
		"last due":       {Key: "k", NotBefore: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)},
		"JSON of a type": {Key: "k", JSON: []int{}, Publishing: amqp.Publishing{ContentType: "application/vnd.shop+json"}},
	} {
		_, err := box.entries([]Message{m}, nil)
		require.NoError(t, err, name)
	}
}

// TestConfig: New returns all faults at once.
func TestConfig(t *testing.T) {
	_, err := New(nil, Config{Schema: "\x00", Table: strings.Repeat("x", 47), Lanes: 65, MaxBody: -2})
	for _, field := range []string{"Schema: ", "Table: 47 bytes, at most 46", "Lanes: 65", "MaxBody: -2"} {
		require.ErrorContains(t, err, field)
	}
	_, err = New(nil, Config{Lanes: -1, Schema: strings.Repeat("x", 64)})
	require.ErrorContains(t, err, "Lanes: -1")
	require.ErrorContains(t, err, "Schema: 64 bytes")
	box, err := New(nil, Config{})
	require.NoError(t, err)
	for _, err := range []error{
		box.Migrate(t.Context()), box.Requeue(t.Context(), uuid.New()), box.Discard(t.Context(), uuid.New()),
		box.InTx(t.Context(), nil), box.Enqueue(t.Context(), nil, Message{Key: "k"}), box.EnqueueBatch(nil, Message{Key: "k"}),
	} {
		require.Error(t, err)
	}
	_, err = box.Stats(t.Context())
	require.ErrorContains(t, err, "pool: nil")
	for _, err := range box.Parked(t.Context()) {
		require.ErrorContains(t, err, "pool: nil")
	}
	box.Wake()
}

// TestLanes: a key has the same lane in every program there will ever be.
func TestLanes(t *testing.T) {
	for key, want := range map[string]int{"": 0, "a": 0, "order-42": 0} {
		require.Equal(t, want, laneOf(key, 1))
	}
	require.Equal(t, []int{5, 44, 52}, []int{laneOf("", 64), laneOf("a", 64), laneOf("order-42", 64)}, "FNV-1a, 32 bits")
	counts := make([]int, 8)
	for i := range 8000 {
		counts[laneOf(fmt.Sprint("customer ", i), 8)]++
	}
	for lane, n := range counts {
		require.Greater(t, n, 700, "lane %d", lane)
	}
}

// TestRoundRobin: messages without a key go to one lane a call, another with each.
func TestRoundRobin(t *testing.T) {
	box, err := New(nil, Config{Lanes: 3})
	require.NoError(t, err)
	seen := map[int]int{}
	for range 6 {
		entries, err := box.entries(somewhere(5), nil)
		require.NoError(t, err)
		for _, e := range entries {
			require.Equal(t, entries[0].lane, e.lane)
		}
		seen[entries[0].lane]++
	}
	require.Equal(t, map[int]int{0: 2, 1: 2, 2: 2}, seen)
}

// TestTrace: the trace a message is enqueued in is stored with it, and costs neither the caller's table nor the message.
func TestTrace(t *testing.T) {
	both := propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})
	box, err := New(nil, Config{Propagator: both})
	require.NoError(t, err)
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
	ctx := trace.ContextWithSpanContext(context.Background(), span)
	stored := func(m Message) amqp.Table {
		m.Key = "k"
		entries, err := box.entries([]Message{m}, box.traceOf(ctx))
		require.NoError(t, err)
		table, err := headers.Parse([]byte(*entries[0].headers))
		require.NoError(t, err)
		return table
	}
	const traceparent = "00-01000000000000000000000000000000-0200000000000000-01"
	own := amqp.Table{"a": int64(1)}
	require.Equal(t, amqp.Table{"a": int64(1), "traceparent": traceparent}, stored(Message{Publishing: amqp.Publishing{Headers: own}}))
	require.Equal(t, amqp.Table{"a": int64(1)}, own, "the caller's is untouched")
	require.Equal(t, amqp.Table{"traceparent": traceparent}, stored(Message{}))
	passedOn := amqp.Table{"traceparent": "an older one"}
	require.Equal(t, passedOn, stored(Message{Publishing: amqp.Publishing{Headers: passedOn}}), "that it carries")

	full := header(strings.Repeat("x", 64<<10-40))
	require.Equal(t, full.Headers, stored(full), "no room")

	require.Empty(t, box.traceOf(context.Background()))
	ctx = propagation.Baggage{}.Extract(ctx, propagation.MapCarrier{"baggage": "k=" + strings.Repeat("v", 8000)})
	require.Len(t, box.traceOf(ctx), 2)
	none, err := New(nil, Config{Propagator: fat{}})
	require.NoError(t, err)
	require.Empty(t, none.traceOf(ctx), "larger than what is worth it, or no text")
}

// fat is a propagator that exaggerates.
type fat struct{ propagation.TraceContext }

func (fat) Inject(_ context.Context, c propagation.TextMapCarrier) {
	c.Set("large", strings.Repeat("x", 9000))
	c.Set("NUL", "\x00")
}

func TestLiteral(t *testing.T) {
	require.Equal(t, `'it''s'`, literal("it's"))
	require.Equal(t, ` E'a\\b'''`, literal(`a\b'`))
}
