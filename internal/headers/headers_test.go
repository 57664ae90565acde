package headers

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/warrenmq/warren/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

// stored is a table after it was JSON.
func stored(t *testing.T, table amqp.Table) amqp.Table {
	t.Helper()
	data := Append(nil, table)
	require.True(t, json.Valid(data), "%s", data)
	back, err := Parse(data)
	require.NoError(t, err)
	return back
}

func TestHeadersKeepTheirKinds(t *testing.T) {
	table := everyKind()
	require.NoError(t, wire.Table("Headers", table))
	back := stored(t, table)
	for name, want := range table {
		require.Equal(t, want, back[name], name)
	}
	require.Len(t, back, len(table))
	require.True(t, math.Signbit(back["minus zero"].(float64)))
}

// TestHeadersOfAnyShape is TestHeadersKeepTheirKinds for tables that nobody thought of.
func TestHeadersOfAnyShape(t *testing.T) {
	for seed := range uint64(500) {
		random := rand.New(rand.NewPCG(seed, 0))
		table := randomTable(random, 4)
		if wire.Table("Headers", table) != nil || len(table) == 0 {
			continue
		}
		require.Equal(t, table, stored(t, table), "seed %d", seed)
	}
}

func randomTable(r *rand.Rand, depth int) amqp.Table {
	table := amqp.Table{}
	for range r.IntN(6) {
		name := randomText(r)
		if r.IntN(3) == 0 {
			name = []string{kindInt, kindFloat64, kindTime, kindDecimal, kindBytes, kindTable}[r.IntN(6)]
		}
		table[name] = randomValue(r, depth)
	}
	return table
}

func randomText(r *rand.Rand) string {
	text := make([]rune, r.IntN(8))
	for i := range text {
		text[i] = rune(1 + r.IntN(0x300))
	}
	return string(text)
}

func randomValue(r *rand.Rand, depth int) any {
	kinds := []func() any{
		func() any { return nil },
		func() any { return r.IntN(2) == 0 },
		func() any { return randomText(r) },
		func() any { return int(int32(r.Uint32())) },
		func() any { return int8(r.Uint32()) },
		func() any { return int16(r.Uint32()) },
		func() any { return int32(r.Uint32()) },
		func() any { return int64(r.Uint64()) },
		func() any { return byte(r.Uint32()) },
		func() any { return uint16(r.Uint32()) },
		func() any { return r.Uint32() },
		func() any { return finite(math.Float64frombits(r.Uint64())) },
		func() any { return float32(finite(float64(math.Float32frombits(r.Uint32())))) },
		func() any { return time.Unix(int64(r.Uint64()>>20)-1<<42, 0).UTC() },
		func() any { return amqp.Decimal{Scale: byte(r.Uint32()), Value: int32(r.Uint32())} },
		func() any { return []byte(randomText(r)) },
	}
	if n := r.IntN(len(kinds) + 4); n < len(kinds) {
		return kinds[n]()
	}
	if depth == 0 {
		return "leaf"
	}
	if r.IntN(2) == 0 {
		return randomTable(r, depth-1)
	}
	array := make([]any, r.IntN(4))
	for i := range array {
		array[i] = randomValue(r, depth-1)
	}
	return array
}

func finite(f float64) float64 {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return 1.5
	}
	return f
}

// TestHeadersOfOthers: rows can be written by hand, in plain JSON, and in JSON that is nothing.
func TestHeadersOfOthers(t *testing.T) {
	for data, want := range map[string]amqp.Table{
		`null`:                         nil,
		`{}`:                           {},
		`{"a": 1.5, "b": 1, "c": 1e3}`: {"a": 1.5, "b": int64(1), "c": 1000.0},
		`{"$int": 1}`:                  {"$int": int64(1)},
	} {
		got, err := Parse([]byte(data))
		require.NoError(t, err, data)
		require.Equal(t, want, got, data)
	}
	for data, problem := range map[string]string{
		`[]`:                                  "cannot unmarshal",
		`{"a": 1e999}`:                        "does not fit",
		`{"a": {"$int": 1e999}}`:              `["a"]: $int`,
		`{"a": [{"$int8": 128}]}`:             `["a"][0]: $int8`,
		`{"a": {"$byte": -1}}`:                "$byte",
		`{"a": {"$int": 2147483648}}`:         "$int",
		`{"a": {"$uint32": "1"}}`:             "$uint32",
		`{"a": {"$float64": 1}}`:              "$float64",
		`{"a": {"$float64": "x"}}`:            "$float64",
		`{"a": {"$bytes": "?"}}`:              "$bytes",
		`{"a": {"$bytes": 1}}`:                "$bytes",
		`{"a": {"$time": "now"}}`:             "$time",
		`{"a": {"$decimal": [1]}}`:            "$decimal",
		`{"a": {"$decimal": [256, 1]}}`:       "$decimal",
		`{"a": {"$decimal": [1, 1.5]}}`:       "$decimal",
		`{"a": {"$table": [1]}}`:              "$table",
		`{"a": {"$table": {"$x": {"$x":1}}}}`: "unknown kind",
		`{"a": {"$colour": "red"}}`:           "unknown kind",
	} {
		_, err := Parse([]byte(data))
		require.ErrorContains(t, err, problem, data)
	}
}

func FuzzParseTable(f *testing.F) {
	f.Add(string(Append(nil, everyKind())))
	f.Add(`{"a": {"$table": {"$int": 1}}}`)
	f.Fuzz(func(t *testing.T, data string) {
		table, err := Parse([]byte(data))
		if err != nil || !utf8.ValidString(data) {
			return
		}
		if wire.Table("", table) == nil && len(table) > 0 {
			again, err := Parse(Append(nil, table))
			require.NoError(t, err)
			require.Equal(t, table, again)
		}
	})
}
