// Package headers keeps the headers of a message in a database: as JSON that can be read and queried, and that still tells
// every kind of value apart. What JSON has no kind of its own for is an object of one entry, whose name says the kind:
//
//	string, bool, nil, int64, []any, amqp.Table      as they are
//	int, int8, int16, int32, byte, uint16, uint32    {"$int32": 7}
//	float32, float64                                 {"$float64": "1.5"}, a text: jsonb's numbers know no -0
//	time.Time                                        {"$time": 1767225600}, the seconds that the wire has
//	amqp.Decimal                                     {"$decimal": [2, 12345]}, scale and value
//	[]byte                                           {"$bytes": "3q2+7w=="}
//	a table that looks like one of these             {"$table": {…}}
//
// Numbers with a fraction, which others may have written, are read as float64.
package headers

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	kindInt     = "$int"
	kindInt8    = "$int8"
	kindInt16   = "$int16"
	kindInt32   = "$int32"
	kindByte    = "$byte"
	kindUint16  = "$uint16"
	kindUint32  = "$uint32"
	kindFloat32 = "$float32"
	kindFloat64 = "$float64"
	kindTime    = "$time"
	kindDecimal = "$decimal"
	kindBytes   = "$bytes"
	kindTable   = "$table"
)

// Append appends t as JSON. It is called with what package wire has accepted, so every value is of a known kind.
func Append(b []byte, t amqp.Table) []byte {
	b = append(b, '{')
	first := true
	for name, v := range t {
		if !first {
			b = append(b, ',')
		}
		first = false
		b = appendString(b, name)
		b = append(b, ':')
		b = appendValue(b, v)
	}
	return append(b, '}')
}

func appendValue(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, "null"...)
	case bool:
		return strconv.AppendBool(b, v)
	case string:
		return appendString(b, v)
	case int64:
		return strconv.AppendInt(b, v, 10)
	case int:
		return appendInt(b, kindInt, int64(v))
	case int8:
		return appendInt(b, kindInt8, int64(v))
	case int16:
		return appendInt(b, kindInt16, int64(v))
	case int32:
		return appendInt(b, kindInt32, int64(v))
	case byte:
		return appendInt(b, kindByte, int64(v))
	case uint16:
		return appendInt(b, kindUint16, int64(v))
	case uint32:
		return appendInt(b, kindUint32, int64(v))
	case time.Time:
		return appendInt(b, kindTime, v.Unix())
	case float32:
		return appendText(b, kindFloat32, strconv.FormatFloat(float64(v), 'g', -1, 32))
	case float64:
		return appendText(b, kindFloat64, strconv.FormatFloat(v, 'g', -1, 64))
	case []byte:
		return appendText(b, kindBytes, base64.StdEncoding.EncodeToString(v))
	case amqp.Decimal:
		return fmt.Appendf(b, `{%q:[%d,%d]}`, kindDecimal, v.Scale, v.Value)
	case []any:
		return appendArray(b, v)
	case amqp.Table:
		if looksTagged(v) {
			return append(Append(append(b, `{"`+kindTable+`":`...), v), '}')
		}
		return Append(b, v)
	default:
		panic(fmt.Sprintf("headers: header of kind %T", v)) // package wire lets none pass
	}
}

func appendArray(b []byte, a []any) []byte {
	b = append(b, '[')
	for i, v := range a {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendValue(b, v)
	}
	return append(b, ']')
}

func appendInt(b []byte, kind string, v int64) []byte {
	b = append(b, `{"`+kind+`":`...)
	return append(strconv.AppendInt(b, v, 10), '}')
}

func appendText(b []byte, kind, v string) []byte {
	return append(b, `{"`+kind+`":"`+v+`"}`...)
}

func appendString(b []byte, s string) []byte {
	quoted, _ := json.Marshal(s) // never fails for a string
	return append(b, quoted...)
}

// looksTagged tells whether a table would be taken for the tag of a kind.
func looksTagged(t amqp.Table) bool {
	for name := range t {
		return len(t) == 1 && strings.HasPrefix(name, "$")
	}
	return false
}

// Parse reads what Append wrote. The text of its errors begins with the place, as in `["a"][0]: …`, or with the colon.
func Parse(data []byte) (amqp.Table, error) {
	decoder := json.NewDecoder(strings.NewReader(string(data)))
	decoder.UseNumber()
	var object map[string]any
	if err := decoder.Decode(&object); err != nil {
		return nil, fmt.Errorf(": %w", err)
	}
	if object == nil {
		return nil, nil // null
	}
	return tableOf(object)
}

func tableOf(object map[string]any) (amqp.Table, error) {
	t := make(amqp.Table, len(object))
	for name, v := range object {
		value, err := valueOf(v)
		if err != nil {
			return nil, fmt.Errorf("[%q]%w", name, err)
		}
		t[name] = value
	}
	return t, nil
}

func valueOf(v any) (any, error) {
	switch v := v.(type) {
	case json.Number:
		return numberOf(v)
	case []any:
		a := make([]any, len(v))
		for i := range v {
			var err error
			if a[i], err = valueOf(v[i]); err != nil {
				return nil, fmt.Errorf("[%d]%w", i, err)
			}
		}
		return a, nil
	case map[string]any:
		if looksTagged(v) {
			return taggedOf(v)
		}
		return tableOf(v)
	}
	return v, nil // string, bool, nil
}

func numberOf(n json.Number) (any, error) {
	if i, err := n.Int64(); err == nil {
		return i, nil
	}
	f, err := n.Float64()
	if err != nil {
		return nil, fmt.Errorf(": number %.40s does not fit", n)
	}
	return f, nil
}

// taggedOf returns the value of an object of one entry that says its kind.
func taggedOf(object map[string]any) (any, error) {
	for kind, v := range object {
		value, err := ofKind(kind, v)
		if err != nil {
			return nil, fmt.Errorf(": %s: %w", kind, err)
		}
		return value, nil
	}
	return nil, errKind // never reached: there is one
}

var errKind = errors.New("no value of that kind")

func ofKind(kind string, v any) (any, error) {
	switch kind {
	case kindInt:
		return integer[int](v, math.MinInt32, math.MaxInt32)
	case kindInt8:
		return integer[int8](v, math.MinInt8, math.MaxInt8)
	case kindInt16:
		return integer[int16](v, math.MinInt16, math.MaxInt16)
	case kindInt32:
		return integer[int32](v, math.MinInt32, math.MaxInt32)
	case kindByte:
		return integer[byte](v, 0, math.MaxUint8)
	case kindUint16:
		return integer[uint16](v, 0, math.MaxUint16)
	case kindUint32:
		return integer[uint32](v, 0, math.MaxUint32)
	case kindTime:
		seconds, err := integer[int64](v, math.MinInt64, math.MaxInt64)
		return time.Unix(seconds, 0).UTC(), err
	case kindFloat32:
		f, err := float(v, 32)
		return float32(f), err
	case kindFloat64:
		return float(v, 64)
	case kindBytes:
		s, ok := v.(string)
		if !ok {
			return nil, errKind
		}
		return base64.StdEncoding.DecodeString(s)
	case kindDecimal:
		return decimal(v)
	case kindTable:
		object, ok := v.(map[string]any)
		if !ok {
			return nil, errKind
		}
		return tableOf(object)
	}
	return nil, errors.New("unknown kind")
}

func integer[T int | int8 | int16 | int32 | int64 | byte | uint16 | uint32](v any, low, high int64) (T, error) {
	n, ok := v.(json.Number)
	if !ok {
		return 0, errKind
	}
	i, err := n.Int64()
	if err != nil || i < low || i > high {
		return 0, errKind
	}
	return T(i), nil
}

func float(v any, bits int) (float64, error) {
	s, ok := v.(string)
	if !ok {
		return 0, errKind
	}
	return strconv.ParseFloat(s, bits)
}

func decimal(v any) (amqp.Decimal, error) {
	pair, ok := v.([]any)
	if !ok || len(pair) != 2 {
		return amqp.Decimal{}, errKind
	}
	scale, err := integer[byte](pair[0], 0, math.MaxUint8)
	if err != nil {
		return amqp.Decimal{}, err
	}
	value, err := integer[int32](pair[1], math.MinInt32, math.MaxInt32)
	return amqp.Decimal{Scale: scale, Value: value}, err
}
