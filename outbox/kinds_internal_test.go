package outbox

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// everyKind has a value of each kind that a header may have, at its bounds.
func everyKind() amqp.Table {
	return amqp.Table{
		"nil": nil, "true": true, "false": false, "empty": "", "text": "grün \U0001F407 <&>\u2028\"\\\n\x01\x7f",
		"int": 7, "int min": math.MinInt32, "int max": math.MaxInt32,
		"int8": int8(math.MinInt8), "int16": int16(math.MinInt16), "int32": int32(math.MinInt32),
		"int64 min": int64(math.MinInt64), "int64 max": int64(math.MaxInt64),
		"byte": byte(255), "uint16": uint16(math.MaxUint16), "uint32": uint32(math.MaxUint32),
		"float32": float32(0.1), "float32 max": float32(math.MaxFloat32), "float64": 0.1, "float64 whole": 3.0,
		"float64 max": math.MaxFloat64, "float64 least": math.SmallestNonzeroFloat64, "minus zero": math.Copysign(0, -1),
		"time": time.Unix(1767225600, 0).UTC(), "time before 1970": time.Unix(-1, 0).UTC(), "time after 9999": time.Unix(1<<40, 0).UTC(),
		"decimal": amqp.Decimal{Scale: 255, Value: math.MinInt32}, "bytes": []byte{0, 0xff, 0xc0}, "no bytes": []byte{},
		"array": []any{nil, "a", int64(1), []any{}, amqp.Table{"b": byte(1)}}, "table": amqp.Table{"a": amqp.Table{}},
		"": "an empty name", "$int": "a name like a kind's",
		"like a kind": amqp.Table{"$int": "no number"}, "like a table": amqp.Table{"$table": amqp.Table{"$table": nil}},
	}
}

// TestHeadersThroughJSONB: whatever kinds headers are mixed of, PostgreSQL gives back the same.
func TestHeadersThroughJSONB(t *testing.T) {
	t.Parallel()
	box := newBox(t, Config{})
	names := slices.Sorted(maps.Keys(everyKind())) // the same in every run
	var values []any
	for _, name := range names {
		values = append(values, everyKind()[name])
	}
	random := rand.New(rand.NewPCG(1, 2))
	var mixed func(depth int) any
	mixed = func(depth int) any {
		switch n := random.IntN(8); {
		case depth > 0 && n == 0:
			array := make([]any, random.IntN(5))
			for i := range array {
				array[i] = mixed(depth - 1)
			}
			return array
		case depth > 0 && n == 1:
			table := amqp.Table{}
			for _, name := range names {
				if random.IntN(10) == 0 {
					table[name] = mixed(depth - 1)
				}
			}
			return table
		}
		return values[random.IntN(len(values))]
	}
	msgs := somewhere(300)
	for i := range msgs {
		msgs[i].Headers = amqp.Table{"mixed": []any{mixed(4), mixed(4), mixed(4)}}
	}
	enqueue(t, box, msgs...)
	for i, m := range laneMessages(t, box, 0) {
		require.Equal(t, msgs[i].Headers, m.Headers, "message %d", i)
	}
}
