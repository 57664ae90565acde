package wire

import (
	"fmt"
	"math"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// nested returns a table with n tables inside each other below it.
func nested(n int) amqp.Table {
	t := amqp.Table{"leaf": "x"}
	for range n {
		t = amqp.Table{"t": t}
	}
	return t
}

func TestTableAccepts(t *testing.T) {
	for name, v := range map[string]any{
		"nil":          nil,
		"bool":         true,
		"byte":         byte(255),
		"int8":         int8(-128),
		"int16":        int16(math.MinInt16),
		"uint16":       uint16(math.MaxUint16),
		"int32":        int32(math.MinInt32),
		"uint32":       uint32(math.MaxUint32),
		"int":          math.MaxInt32,
		"negative int": math.MinInt32,
		"int64":        int64(math.MinInt64),
		"float32":      float32(1.5),
		"float64":      math.SmallestNonzeroFloat64,
		"minus zero":   math.Copysign(0, -1),
		"decimal":      amqp.Decimal{Scale: 255, Value: -1},
		"string":       "a\x00\xff",
		"bytes":        []byte{0, 255},
		"no bytes":     []byte(nil),
		"array":        []any{"a", int64(1), nil, []any{}, amqp.Table{}},
		"no array":     []any(nil),
		"table":        amqp.Table{"": "empty name", "\xff": 1},
		"no table":     amqp.Table(nil),
		"now":          time.Now(),
		"no time":      time.Time{},
		"far time":     time.Unix(1<<62, 0),
		"16 levels":    nested(15),
		"long name":    amqp.Table{x(255): 1},
		"many":         make([]any, 8192),
		"large":        x(65536 - 4 - 2 - 5),
	} {
		t.Run(name, func(t *testing.T) {
			table := amqp.Table{"v": v}
			requireFaults(t, Table("Headers", table))
			require.NoError(t, table.Validate(), "the driver agrees")
		})
	}
	requireFaults(t, Table("Headers", nil))
	requireFaults(t, Table("Headers", amqp.Table{}))
}

type colour string

func TestTableRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		value any
		want  string // after `Headers["v"]`
	}{
		"NaN":            {math.NaN(), ": NaN is no number to the broker"},
		"Inf":            {math.Inf(1), ": +Inf is no number to the broker"},
		"float32 Inf":    {float32(math.Inf(-1)), ": -Inf is no number to the broker"},
		"large int":      {math.MaxInt32 + 1, ": int 2147483648 does not fit the 32 bits it is sent with, use int64"},
		"small int":      {math.MinInt32 - 1, ": int -2147483649 does not fit the 32 bits it is sent with, use int64"},
		"uint":           {uint(1), ": uint cannot be sent, use int64"},
		"uint64":         {uint64(1), ": uint64 cannot be sent, use int64"},
		"duration":       {time.Second, ": time.Duration cannot be sent, use int64 milliseconds or a string"},
		"month":          {time.May, ": time.Month cannot be sent, use int64"},
		"named string":   {colour("red"), ": wire.colour cannot be sent, use string"},
		"[]string":       {[]string{"a"}, ": []string cannot be sent, use []any"},
		"array":          {[2]int{}, ": [2]int cannot be sent, use []any"},
		"map":            {map[string]any{}, ": map[string]interface {} cannot be sent, use amqp.Table"},
		"pointer":        {new(int), ": *int cannot be sent"},
		"nil pointer":    {(*int)(nil), ": *int cannot be sent"},
		"complex":        {1i, ": complex128 cannot be sent"},
		"struct":         {struct{}{}, ": struct {} cannot be sent"},
		"in an array":    {[]any{1, []any{uint(1)}}, `[1][0]: uint cannot be sent, use int64`},
		"in a table":     {amqp.Table{"a": amqp.Table{"b": uint(1)}}, `["a"]["b"]: uint cannot be sent, use int64`},
		"in both":        {amqp.Table{"a": []any{0, amqp.Table{"b\n": uint(1)}}}, `["a"][1]["b\n"]: uint cannot be sent, use int64`},
		"long name":      {amqp.Table{x(256): 1}, fmt.Sprintf(`: name "%s"…: 256 bytes, at most 255`, x(60))},
		"too many":       {make([]any, 8193), ": 8193 elements, at most 8192"},
		"level 17":       {nested(16), x16(`["t"]`) + ": nested deeper than 16 levels"},
		"level 17 of []": {nestedArray(17), x16("[0]") + ": nested deeper than 16 levels"},
	} {
		t.Run(name, func(t *testing.T) {
			requireFaults(t, Table("Headers", amqp.Table{"v": tt.value}), `Headers["v"]`+tt.want)
		})
	}
}

func nestedArray(n int) any {
	var v any
	for range n {
		v = []any{v}
	}
	return v
}

func x16(s string) (all string) {
	for range 16 {
		all += s
	}
	return all
}

func TestTableIsTooLarge(t *testing.T) {
	const want = "Arguments: larger than 65536 bytes when encoded"
	requireFaults(t, Table("Arguments", amqp.Table{"v": x(65536 - 4 - 2 - 5 + 1)}), want)
	requireFaults(t, Table("Arguments", amqp.Table{"v": make([]byte, 1<<20)}), want)

	many := amqp.Table{}
	for i := range 8193 {
		many[fmt.Sprint(i)] = nil
	}
	requireFaults(t, Table("Arguments", many), "Arguments: 8193 entries, at most 8192")

	self := amqp.Table{}
	self["a"], self["b"] = self, []any{self, self}
	err := Table("Arguments", self)
	require.ErrorContains(t, err, "nested deeper than 16 levels")
	require.ErrorContains(t, err, want)

	wide := make([]any, 8192) // 8192 to the power of 8 values, if one walked them all
	for range 8 {
		next := make([]any, 8192)
		for i := range next {
			next[i] = wide
		}
		wide = next
	}
	requireFaults(t, Table("Arguments", amqp.Table{"v": wide}), want)
}

func TestTableReportsAllFaults(t *testing.T) {
	requireFaults(t, Table("Arguments", amqp.Table{"b": uint(1), "a": uint64(1), "ok": 1, "c": amqp.Table{"d": math.NaN()}}),
		`Arguments["a"]: uint64 cannot be sent, use int64`,
		`Arguments["b"]: uint cannot be sent, use int64`,
		`Arguments["c"]["d"]: NaN is no number to the broker`,
	)
	bad := make([]any, 100)
	for i := range bad {
		bad[i] = 1i
	}
	err := Table("Arguments", amqp.Table{"v": bad})
	require.ErrorContains(t, err, `Arguments["v"][0]: complex128 cannot be sent`)
	require.ErrorContains(t, err, "Arguments: 90 more faults")
}
