package wire

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// usual are messages as they are published: each must be checked without an allocation.
var usual = map[string]amqp.Publishing{
	"no headers": {MessageId: "0195f3c0-8a2b-7c3d-9e4f-5a6b7c8d9e0f", ContentType: "application/json", DeliveryMode: 2,
		Timestamp: time.Now(), Body: make([]byte, 256)},
	"few headers": {MessageId: "0195f3c0-8a2b-7c3d-9e4f-5a6b7c8d9e0f", ContentType: "application/json", DeliveryMode: 2,
		Headers: amqp.Table{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "attempt": int64(3), "tenant": "acme"}},
	"nested headers": {Headers: amqp.Table{"a": amqp.Table{"b": []any{"c", 1.5, time.Now()}}, "d": []any{true, nil}}},
}

func TestUsualMessagesAllocateNothing(t *testing.T) {
	for name, msg := range usual {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, Publishing("orders", "order.created", &msg, Limits{User: "guest", FrameMax: 131072}))
			require.Zero(t, testing.AllocsPerRun(1000, func() { _ = Publishing("orders", "order.created", &msg, Limits{User: "guest"}) }))
		})
	}
}

func BenchmarkPublishing(b *testing.B) {
	for name, msg := range usual {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_ = Publishing("orders", "order.created", &msg, Limits{User: "guest", FrameMax: 131072})
			}
		})
	}
}

func BenchmarkCopy(b *testing.B) {
	d := amqp.Delivery{Headers: amqp.Table{"x-delivery-count": int64(1), "tenant": "acme", "attempt": int64(1)}, Body: make([]byte, 256)}
	b.ReportAllocs()
	for b.Loop() {
		_ = Copy(d)
	}
}
