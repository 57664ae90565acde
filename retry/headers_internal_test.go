package retry

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/wire"
)

func TestTrusted(t *testing.T) {
	for name, tt := range map[string]struct {
		exchange, key string
		others        []string
		want          bool
	}{
		"default exchange":              {"", "q", nil, true},
		"another key":                   {"", "other", nil, false},
		"another exchange":              {"orders", "q", nil, false},
		"own dead-letter exchange":      {"dlx", "q", []string{"dlx", ""}, true},
		"its other keys":                {"dlx", "other", []string{"dlx"}, false},
		"default exchange beside it":    {"", "q", []string{"dlx"}, true},
		"own delayed exchange":          {"q.delayed", "q", []string{"", "q.delayed"}, true},
		"another queue's":               {"p.delayed", "q", []string{"", "q.delayed"}, false},
		"no dead-letter exchange named": {"orders", "q", []string{"", ""}, false},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tt.want, trusted(tt.exchange, tt.key, "q", tt.others...)) })
	}
}

// full is a delivery with everything set.
func full() amqp.Delivery {
	return amqp.Delivery{
		Headers:     amqp.Table{"tenant": "acme", "n": int64(7), "deep": amqp.Table{"a": []any{int64(1), "b"}}, "CC": []any{"copy"}},
		ContentType: "application/json", ContentEncoding: "gzip", DeliveryMode: amqp.Persistent, Priority: 9, CorrelationId: "c",
		ReplyTo: "replies", Expiration: "60000", MessageId: "m", Timestamp: time.Unix(1_700_000_000, 0), Type: "t", UserId: "u",
		AppId: "a", Exchange: "orders", RoutingKey: "order.created", Body: []byte("body"),
	}
}

// asDelivery is msg as a consumer gets it, sent to the default exchange with key.
func asDelivery(msg amqp.Publishing, key string) amqp.Delivery {
	return amqp.Delivery{
		Headers: msg.Headers, ContentType: msg.ContentType, ContentEncoding: msg.ContentEncoding, DeliveryMode: msg.DeliveryMode,
		Priority: msg.Priority, CorrelationId: msg.CorrelationId, ReplyTo: msg.ReplyTo, Expiration: msg.Expiration,
		MessageId: msg.MessageId, Timestamp: msg.Timestamp, Type: msg.Type, UserId: msg.UserId, AppId: msg.AppId,
		RoutingKey: key, Body: msg.Body,
	}
}

func TestCopyAndRestore(t *testing.T) {
	now := time.Now().UTC()
	r := record{attempt: 3, first: now.Add(-time.Minute), last: now.Add(-time.Second), err: "boom", notBefore: now.Add(time.Hour)}
	d := full()
	d.Headers["x-death"] = []any{amqp.Table{"reason": "expired"}}
	msg := copyOf(d, r)
	for _, gone := range []string{"x-death", "CC"} {
		require.NotContains(t, msg.Headers, gone)
	}
	require.Empty(t, msg.Expiration)
	require.Empty(t, msg.UserId)
	require.Len(t, d.Headers, 5, "the delivery's own table is left alone")

	// On its way the broker adds headers of its own.
	back := asDelivery(msg, "q")
	for _, name := range []string{"x-death", "x-first-death-queue", "x-last-death-reason"} {
		back.Headers = with(back.Headers, name, "broker")
	}
	first, got := restore(back, true)
	require.Equal(t, full(), first)
	require.Equal(t, r, got)

	untrusted, none := restore(back, false)
	require.Equal(t, record{attempt: 1}, none)
	require.Empty(t, untrusted.Exchange)
	require.Equal(t, "q", untrusted.RoutingKey)
	for _, name := range ownHeaders {
		require.NotContains(t, untrusted.Headers, name)
	}
}

func TestFirstAttemptShowsTheMessageAsItIs(t *testing.T) {
	d := full()
	first, r := restore(d, true)
	require.Equal(t, d, r.show(first))
	require.Equal(t, Info{Attempt: 1}, InfoOf(d))

	bare := amqp.Delivery{RoutingKey: "q", Body: []byte("body")}
	msg := copyOf(bare, record{attempt: 1}) // one that is only late
	require.NotContains(t, msg.Headers, attemptHeader)
	first, r = restore(asDelivery(msg, "q"), true)
	first.DeliveryMode = 0
	require.Equal(t, bare, first)
	require.Equal(t, record{attempt: 1}, r)
}

func TestAttemptIsReadTolerantly(t *testing.T) {
	for name, tt := range map[string]struct {
		value any
		want  int
	}{
		"int64": {int64(3), 3}, "int32": {int32(3), 3}, "int16": {int16(3), 3}, "int8": {int8(3), 3}, "int": {3, 3},
		"uint8": {uint8(3), 3}, "uint16": {uint16(3), 3}, "uint32": {uint32(3), 3},
		"text": {"3", 3}, "bytes": {[]byte(" 3 "), 3}, "no number": {"three", 1}, "empty": {"", 1}, "nil": {nil, 1},
		"negative": {int64(-3), 1}, "zero": {int64(0), 1}, "huge": {int64(math.MaxInt64), maxAttempt}, "least": {int64(math.MinInt64), 1},
		"huge text": {strings.Repeat("9", 300), 1}, "float": {3.0, 1}, "table": {amqp.Table{}, 1}, "list": {[]any{int64(3)}, 1},
		"time": {time.Now(), 1}, "bool": {true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tt.want, InfoOf(amqp.Delivery{Headers: amqp.Table{attemptHeader: tt.value}}).Attempt)
		})
	}
}

func TestForgedHeadersAreBounded(t *testing.T) {
	future := time.Now().Add(1000 * time.Hour).Format(time.RFC3339Nano)
	long := strings.Repeat("ü", 40_000)
	names := make([]any, 5000)
	for i := range names {
		names[i] = long
	}
	own := amqp.Table{
		firstFailureHeader: future, lastFailureHeader: future, errorHeader: long, notBeforeHeader: "9999-01-01T00:00:00Z",
		exchangeHeader: long, keyHeader: long, userIDHeader: long, expirationHeader: "-1", priorityHeader: int64(1 << 40),
		ccHeader: "no list", reasonHeader: long, consumerHeader: []byte(long), cutHeader: names,
	}
	first, r := restore(amqp.Delivery{RoutingKey: "q", Headers: own}, true)
	require.WithinDuration(t, time.Now(), r.first, time.Minute, "no failure lies in the future")
	require.WithinDuration(t, time.Now(), r.last, time.Minute)
	require.Zero(t, r.notBefore)
	require.LessOrEqual(t, len(r.err), maxError)
	require.Len(t, r.cut, maxCutNames)
	for _, s := range append(r.cut, first.Exchange, first.RoutingKey, first.UserId, r.reason, r.consumer) {
		require.LessOrEqual(t, len(s), maxShort)
	}
	require.Empty(t, first.Expiration)
	require.Zero(t, first.Priority)
	require.Nil(t, first.Headers)
	msg := copyOf(first, r)
	require.NoError(t, wire.Publishing("", "q", &msg, wire.Limits{}))
}

func TestBounded(t *testing.T) {
	require.Equal(t, "abc", bounded("abc", 3))
	require.Equal(t, "ab", bounded("abc", 2))
	require.Equal(t, "ü", bounded("üü", 3), "no half of a rune")
	require.Empty(t, bounded("ü", 1))
	require.Empty(t, bounded("\x80\x80", 1), "invalid text ends, too")
}

func TestParseExpiration(t *testing.T) {
	for s, want := range map[string]time.Duration{
		"0": 0, "1500": 1500 * time.Millisecond, "0042": 42 * time.Millisecond,
		"9223372036854775807": (math.MaxInt64 / time.Millisecond) * time.Millisecond,
	} {
		got, ok := parseExpiration(s)
		require.True(t, ok, s)
		require.Equal(t, want, got, s)
	}
	for _, s := range []string{"", "-1", "+1", "1.5", "abc", " 1", "99999999999999999999"} {
		_, ok := parseExpiration(s)
		require.False(t, ok, s)
	}
}

// FuzzRestore: whatever the headers hold, what comes out can be published, and comes back as it was.
func FuzzRestore(f *testing.F) {
	f.Add([]byte("warren-attempt"), "3", int64(3), "2024-01-01T00:00:00.5Z")
	f.Add([]byte{0, 1, 2, 255}, "", int64(-1), "never")
	f.Add([]byte("01"), "0", int64(45), "7000-01-01T0:00:00Z") // ahead of our clock
	f.Fuzz(func(t *testing.T, pick []byte, text string, n int64, at string) {
		h := amqp.Table{}
		values := []any{text, []byte(text), n, int32(n), at, []any{text, n}, amqp.Table{text: n}, nil, float64(n)}
		for i, b := range pick[:min(len(pick), 2*len(ownHeaders))] {
			h[ownHeaders[i%len(ownHeaders)]] = values[int(b)%len(values)]
		}
		if len(h) == 0 {
			h = nil // as the driver has it
		}
		first, r := restore(amqp.Delivery{RoutingKey: "q", MessageId: "m", Headers: h}, true)
		require.GreaterOrEqual(t, r.attempt, 1)
		msg := copyOf(first, r)
		if cc, ok := first.Headers["CC"].([]any); ok && wire.Table("CC", amqp.Table{"CC": cc}) != nil {
			return // a list that cannot be sent is refused like any other header
		}
		require.NoError(t, wire.Publishing("", "q", &msg, wire.Limits{}))
		again, r2 := restore(asDelivery(msg, "q"), true)
		again.DeliveryMode = first.DeliveryMode
		require.Equal(t, first, again)
		require.Equal(t, r, r2)
	})
}

// FuzzBounded: never longer, always the beginning, valid if it was.
func FuzzBounded(f *testing.F) {
	f.Add([]byte("größe"), uint16(4))
	f.Fuzz(func(t *testing.T, b []byte, n uint16) {
		got := bounded(string(b), int(n))
		require.LessOrEqual(t, len(got), int(n))
		require.True(t, bytes.HasPrefix(b, []byte(got)))
	})
}
