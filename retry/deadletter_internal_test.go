package retry

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// deaths is an x-death header with one entry.
func deaths(entry amqp.Table) amqp.Table { return amqp.Table{"x-death": []any{entry}} }

// What the broker says of a death is read whatever of it is missing, or of another kind.
func TestLastDeath(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	whole := amqp.Table{"queue": "jobs", "reason": "expired", "exchange": "x", "routing-keys": []any{"key", "cc"}, "original-expiration": "10", "time": at,
		"count": int64(1)}
	for name, tt := range map[string]struct {
		headers amqp.Table
		want    death
		ok      bool
	}{
		"none":            {nil, death{}, false},
		"text":            {amqp.Table{"x-death": "rejected"}, death{}, false},
		"empty":           {amqp.Table{"x-death": []any{}}, death{}, false},
		"of numbers":      {amqp.Table{"x-death": []any{int64(1)}}, death{}, false},
		"without a queue": {deaths(amqp.Table{"reason": "expired"}), death{}, false},
		"whole":           {deaths(whole), death{queue: "jobs", reason: "expired", exchange: "x", key: "key", cc: []any{"cc"}, expiration: "10", at: at}, true},
		"the newest comes first": {amqp.Table{"x-death": []any{amqp.Table{"queue": "jobs", "reason": "rejected"}, whole}},
			death{queue: "jobs", reason: "rejected"}, true},
		"other kinds": {deaths(amqp.Table{"queue": []byte("jobs"), "reason": "maxlen", "exchange": int32(3), "routing-keys": "key", "time": "now",
			"original-expiration": int64(7)}), death{queue: "jobs", reason: "maxlen"}, true},
		"keys of another kind": {deaths(amqp.Table{"queue": "jobs", "reason": "maxlen", "routing-keys": []any{int64(1)}}),
			death{queue: "jobs", reason: "maxlen", cc: []any{}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := lastDeath(tt.headers)
			require.Equal(t, tt.ok, ok)
			require.Equal(t, tt.want, got)
		})
	}
}

// Our headers on a message that the broker moved are believed only if it came to its queue as our copies do.
func TestLetterBelievesOwnHeadersOnly(t *testing.T) {
	own := func(exchange string, keys ...any) amqp.Delivery {
		h := deaths(amqp.Table{"queue": "jobs", "reason": "rejected", "exchange": exchange, "routing-keys": keys})
		h[attemptHeader], h[keyHeader], h[exchangeHeader], h[reasonHeader] = int64(4), "orders.created", "orders", "exhausted"
		return amqp.Delivery{RoutingKey: "jobs.dlq", Headers: h}
	}
	for name, tt := range map[string]struct {
		d             amqp.Delivery
		exchange, key string
		attempt       int
	}{
		"as a copy":             {own("", "jobs"), "orders", "orders.created", 4},
		"by another exchange":   {own("elsewhere", "jobs"), "elsewhere", "jobs", 1},
		"under another name":    {own("", "other"), "", "other", 1},
		"by nobody knows where": {own(""), "", "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			l := letterOf(tt.d, "jobs")
			require.True(t, l.ByBroker)
			require.Equal(t, "rejected", l.Reason)
			require.Equal(t, tt.exchange, l.Exchange)
			require.Equal(t, tt.key, l.RoutingKey)
			require.Equal(t, tt.attempt, l.Attempt)
			require.Empty(t, l.Headers)
		})
	}
	bare := letterOf(amqp.Delivery{RoutingKey: "jobs.dlq", MessageId: "m"}, "jobs")
	require.Equal(t, "jobs", bare.RoutingKey, "a copy by somebody who keeps no more than the message")
	require.Empty(t, bare.Reason)
	require.False(t, bare.ByBroker)
}

// A message that has been given back nearly as often as its queue allows is left alone.
func TestDeliveryLimitIsKeptInSight(t *testing.T) {
	for _, tt := range []struct {
		limit int64
		count any
		fine  bool
	}{{1000, nil, true}, {1000, int64(500), true}, {1000, int64(501), false}, {1000, int32(999), false}, {dlqDeliveryLimit, int64(900_000), true}} {
		r := &reader{kind: kind{quorum: true, limit: tt.limit}, portion: 1}
		d := amqp.Delivery{MessageId: "m"}
		if tt.count != nil {
			d.Headers = amqp.Table{"x-delivery-count": tt.count}
		}
		err := r.learn([]amqp.Delivery{d})
		require.Equal(t, tt.fine, err == nil, "limit %d, count %v: %v", tt.limit, tt.count, err)
	}
}

// Portions grow, but not by much at a time, and are small where messages are large.
func TestPortions(t *testing.T) {
	r := &reader{kind: kind{limit: 1000}, portion: 1}
	sized := func(n, size int) (ds []amqp.Delivery) {
		for range n {
			ds = append(ds, amqp.Delivery{Body: make([]byte, size)})
		}
		return ds
	}
	for _, want := range []int{4, 16, 64, 256, portionMost, portionMost} {
		require.NoError(t, r.learn(sized(r.portion, 100)))
		require.Equal(t, want, r.portion)
	}
	require.NoError(t, r.learn(sized(1, 100)))
	require.Equal(t, portionMost, r.portion, "a queue that had no more says nothing")
	require.NoError(t, r.learn(sized(10, 1<<20)))
	require.Equal(t, 7, r.portion)
	require.NoError(t, r.learn(sized(2, 16<<20)))
	require.Equal(t, 1, r.portion)
}

// What a Redrive has sent back itself, and what is dead again, takes nobody's place among those that it has yet to see; also not
// on the next channel, when this one is lost.
func TestThoseSentBackAreNotCounted(t *testing.T) {
	again := amqp.Delivery{RoutingKey: "q.dlq", Headers: amqp.Table{redriveHeader: "run"}}
	other := amqp.Delivery{RoutingKey: "q.dlq", Headers: amqp.Table{redriveHeader: "another"}}
	none := func(DeadLetter) bool { return false }
	j := &job{letters: &DeadLetters{queue: "q"}, run: "run", what: Selection{Where: none}}
	r := &reader{total: 10, seen: 4, open: 4}
	require.NoError(t, j.portion(t.Context(), t.Context(), r, []amqp.Delivery{again, other, again, again}))
	require.Len(t, r.held, 4)
	require.Zero(t, r.open)
	require.Equal(t, 1, r.seen)
	require.Equal(t, 10, r.left())
}

// Whatever the headers are, a letter can be read, and what is sent back is on its first attempt, and carries none of the
// broker's headers.
func FuzzLetter(f *testing.F) {
	f.Add(`{"x-death": [{"queue": "jobs", "reason": "expired", "routing-keys": ["a", "b"]}], "warren-attempt": 7}`)
	f.Add(`{"warren-routing-key": "k", "warren-cc": [1, "a"], "warren-cut": [[]], "warren-expiration": "x", "CC": ["a"], "x-death": {}}`)
	f.Fuzz(func(t *testing.T, text string) {
		var headers map[string]any
		if json.Unmarshal([]byte(text), &headers) != nil {
			return
		}
		l := letterOf(amqp.Delivery{RoutingKey: "jobs.dlq", Headers: table(headers)}, "jobs")
		require.GreaterOrEqual(t, l.Attempt, 1)
		require.LessOrEqual(t, len(l.Reason), maxShort)
		msg := l.back("run")
		require.Equal(t, "run", msg.Headers[redriveHeader])
		require.NotContains(t, msg.Headers, attemptHeader)
		for name := range msg.Headers {
			require.False(t, name == "CC" || name == "BCC" || name == "x-death" || strings.HasPrefix(name, "x-first-death-"), name)
		}
	})
}

func table(m map[string]any) amqp.Table {
	if m == nil {
		return nil
	}
	out := amqp.Table{}
	for name, v := range m {
		switch v := v.(type) {
		case map[string]any:
			out[name] = table(v)
		case []any:
			list := make([]any, len(v))
			for i, e := range v {
				if inner, ok := e.(map[string]any); ok {
					list[i] = table(inner)
				} else {
					list[i] = e
				}
			}
			out[name] = list
		default:
			out[name] = v
		}
	}
	return out
}
