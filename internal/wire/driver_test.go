package wire

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// What is accepted here must be accepted by the driver, and must be as large on the wire as was computed.

func TestSizeIsTheDrivers(t *testing.T) {
	p := newPeer(t)
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
			require.Equal(t, p.encoded(t, "e", "k", msg), computed(&msg))
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
	p := newPeer(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		g := generator{data}
		msg := g.message()
		exchange, key := g.text(), g.text()
		if err := Publishing(exchange, key, &msg, Limits{}); err != nil {
			require.True(t, permanent(err))
			return
		}
		require.NoError(t, msg.Headers.Validate())
		require.Equal(t, p.encoded(t, exchange, key, msg), computed(&msg))
	})
}

// FuzzTable checks that a table which is accepted passes the driver's check too, and that faults stay few lines.
func FuzzTable(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{18, 3, 17, 2, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	f.Fuzz(func(t *testing.T, data []byte) {
		g := generator{data}
		table := g.table(0)
		err := Table("T", table)
		if err == nil {
			require.NoError(t, table.Validate())
			return
		}
		require.True(t, permanent(err))
	})
}

// generator turns bytes into values: each consumes some of data, and is zero when nothing is left.
type generator struct{ data []byte }

func (g *generator) next() byte {
	if len(g.data) == 0 {
		return 0
	}
	b := g.data[0]
	g.data = g.data[1:]
	return b
}

func (g *generator) number() (n uint64) {
	for range 8 {
		n = n<<8 | uint64(g.next())
	}
	return n
}

// text returns up to 255 bytes, now and then 256.
func (g *generator) text() string {
	n := int(g.next())
	if n == 255 {
		n += int(g.next()) % 2
	}
	b := make([]byte, n%64)
	for i := range b {
		b[i] = g.next()
	}
	if n >= 250 {
		b = append(b, x(n-len(b))...)
	}
	return string(b)
}

func (g *generator) message() amqp.Publishing {
	msg := amqp.Publishing{
		DeliveryMode: g.next() % 3,
		Priority:     g.next(),
		ContentType:  g.text(),
		MessageId:    g.text(),
		AppId:        g.text(),
		Headers:      g.table(0),
	}
	if g.next()%2 == 0 {
		msg.Timestamp = time.Unix(int64(g.number()), 0)
		msg.Expiration = "1234"[:g.next()%5]
	}
	return msg
}

func (g *generator) table(depth int) amqp.Table {
	t := amqp.Table{}
	for range g.next() % 8 {
		t[g.text()] = g.value(depth)
	}
	return t
}

func (g *generator) value(depth int) any {
	switch g.next() % 24 {
	case 0:
		return g.next()%2 == 0
	case 1:
		return g.next()
	case 2:
		return int8(g.next())
	case 3:
		return int16(g.number())
	case 4:
		return uint16(g.number())
	case 5:
		return int32(g.number())
	case 6:
		return uint32(g.number())
	case 7:
		return int(g.number())
	case 8:
		return int64(g.number())
	case 9:
		return math.Float32frombits(uint32(g.number()))
	case 10:
		return math.Float64frombits(g.number())
	case 11:
		return amqp.Decimal{Scale: g.next(), Value: int32(g.number())}
	case 12:
		return time.Unix(int64(g.number()), 0)
	case 13:
		return []byte(g.text())
	case 14:
		return g.number() // uint64: refused
	case 15:
		return []string{g.text()} // refused
	case 16:
		return make([]any, int(g.number()%9000))
	case 17, 18:
		if depth > 40 {
			return nil
		}
		return g.table(depth + 1)
	case 19, 20:
		if depth > 40 {
			return nil
		}
		a := []any{}
		for range g.next() % 8 {
			a = append(a, g.value(depth+1))
		}
		return a
	case 21:
		return x(int(g.number() % 40_000))
	case 22:
		return g.text()
	default:
		return nil
	}
}
