// Package messages makes messages out of bytes, for fuzz tests.
package messages

import (
	"math"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// New returns a Generator of what data stands for.
func New(data []byte) *Generator { return &Generator{data} }

// Generator turns bytes into messages, good and bad: each value consumes some of the bytes, and is zero when nothing is left.
type Generator struct{ data []byte }

func (g *Generator) next() byte {
	if len(g.data) == 0 {
		return 0
	}
	b := g.data[0]
	g.data = g.data[1:]
	return b
}

func (g *Generator) number() (n uint64) {
	for range 8 {
		n = n<<8 | uint64(g.next())
	}
	return n
}

// Text returns up to 255 bytes, now and then 256.
func (g *Generator) Text() string {
	n := int(g.next())
	if n == 255 {
		n += int(g.next()) % 2
	}
	b := make([]byte, n%64)
	for i := range b {
		b[i] = g.next()
	}
	if n >= 250 {
		b = append(b, strings.Repeat("x", n-len(b))...)
	}
	return string(b)
}

// Message returns a message.
func (g *Generator) Message() amqp.Publishing {
	msg := amqp.Publishing{
		DeliveryMode: g.next() % 3,
		Priority:     g.next(),
		ContentType:  g.Text(),
		MessageId:    g.Text(),
		AppId:        g.Text(),
		Headers:      g.table(0),
	}
	if g.next()%2 == 0 {
		msg.Timestamp = time.Unix(int64(g.number()), 0)
		msg.Expiration = "1234"[:g.next()%5]
	}
	return msg
}

// Table returns a table.
func (g *Generator) Table() amqp.Table { return g.table(0) }

func (g *Generator) table(depth int) amqp.Table {
	t := amqp.Table{}
	for range g.next() % 8 {
		t[g.Text()] = g.value(depth)
	}
	return t
}

func (g *Generator) value(depth int) any {
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
		return []byte(g.Text())
	case 14:
		return g.number() // uint64: refused
	case 15:
		return []string{g.Text()} // refused
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
		return strings.Repeat("x", int(g.number()%40_000))
	case 22:
		return g.Text()
	default:
		return nil
	}
}
