package wire

import (
	"math/rand/v2"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv/messages"
)

// What is accepted here must be accepted by the driver, and must be as large on the wire as was computed.

func TestSizeIsTheDrivers(t *testing.T) {
	d := newDriver(t)
	for name, msg := range map[string]amqp.Publishing{
		"empty":         {},
		"properties":    full(255),
		"one property":  {MessageId: "m"},
		"empty headers": {Headers: amqp.Table{}},
		"every kind": {Headers: amqp.Table{
			"nil": nil, "bool": true, "byte": byte(1), "int8": int8(1), "int16": int16(1), "uint16": uint16(1), "int32": int32(1),
			"uint32": uint32(1), "int": 1, "int64": int64(1), "float32": float32(1), "float64": 1.0, "decimal": amqp.Decimal{},
			"string": "string", "bytes": []byte("bytes"), "time": time.Now(), "table": amqp.Table{"a": amqp.Table{}},
			"array": []any{"a", []any{nil, true}, amqp.Table(nil), []any(nil), []byte(nil)},
		}},
		"largest": headersOf("a", x(64<<10-14-4-2-5)),
		"deepest": {Headers: amqp.Table{"a": nested(15)}},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, Publishing("e", "k", &msg, Limits{}))
			require.Equal(t, d.encoded(t, "e", "k", msg), computed(&msg))
		})
	}
}

// computed is the size of the content header as Publishing reckons it.
func computed(msg *amqp.Publishing) int {
	var f faults
	size := properties(&f, msg)
	if len(msg.Headers) > 0 {
		w := walker{limit: maxSize}
		w.table(msg.Headers, 0)
		size += w.size
	}
	return size
}

// FuzzPublishing makes messages out of bytes, good and bad, and holds the verdict against the driver's.
func FuzzPublishing(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 60 {
		seed := make([]byte, n*n)
		for i := range seed {
			seed[i] = byte(r.Uint32())
		}
		f.Add(seed)
	}
	d := newDriver(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		g := messages.New(data)
		msg := g.Message()
		exchange, key := g.Text(), g.Text()
		if err := Publishing(exchange, key, &msg, Limits{}); err != nil {
			require.True(t, permanent(err))
			return
		}
		require.NoError(t, msg.Headers.Validate())
		require.Equal(t, d.encoded(t, exchange, key, msg), computed(&msg))
	})
}

// FuzzTable checks that a table which is accepted passes the driver's check too, and that faults stay few lines.
func FuzzTable(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{18, 3, 17, 2, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	f.Fuzz(func(t *testing.T, data []byte) {
		g := messages.New(data)
		table := g.Table()
		err := Table("T", table)
		if err == nil {
			require.NoError(t, table.Validate())
			return
		}
		require.True(t, permanent(err))
	})
}
