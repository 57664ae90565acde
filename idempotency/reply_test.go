package idempotency_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/idempotency"
)

func TestHandleReply(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	inbox := d.inbox("charge", idempotency.Config{LockTimeout: patience})
	var calls atomic.Int32
	reply := amqp.Publishing{
		ContentType: "application/json", ContentEncoding: "identity", DeliveryMode: 1, Priority: 3, MessageId: "m", Type: "receipt",
		AppId: "charge", Timestamp: time.Unix(1767225600, 0).UTC(), Body: []byte("line 1\nline 2\x00\xff"),
		Headers: amqp.Table{"int32": int32(7), "int64": int64(7), "bytes": []byte{0xff}, "table": amqp.Table{"a": []any{true, nil}}},
	}
	handle := inbox.HandleReply(func(ctx context.Context, tx pgx.Tx, del amqp.Delivery) (amqp.Publishing, error) {
		calls.Add(1)
		switch string(del.Body) {
		case "fails":
			return reply, errWork
		case "empty":
			return amqp.Publishing{}, nil
		case "not stored":
			return amqp.Publishing{Headers: amqp.Table{"a": "\xff"}}, nil
		case "not on the wire":
			return amqp.Publishing{Headers: amqp.Table{"a": struct{}{}}}, addA(ctx, tx)
		case "too long":
			return amqp.Publishing{Type: strings.Repeat("t", 256)}, addA(ctx, tx)
		}
		return reply, addA(ctx, tx)
	})
	request := amqp.Delivery{MessageId: "r-1", RoutingKey: "charge", Type: "charge", ContentType: "text/plain", Body: []byte("10 EUR"), Expiration: "1000"}
	again := request
	again.Redelivered, again.Expiration, again.CorrelationId, again.RoutingKey = true, "700", "another call", "the server's queue"
	for _, err := range all(8, func(i int) error {
		got, err := handle(t.Context(), []amqp.Delivery{request, again}[i%2])
		if err == nil {
			require.Equal(t, reply, got)
		}
		return err
	}) {
		require.NoError(t, err)
	}
	require.EqualValues(t, 1, calls.Load())
	require.Equal(t, 1, d.balance("a"))

	for name, change := range map[string]func(*amqp.Delivery){
		"body":         func(d *amqp.Delivery) { d.Body = []byte("20 EUR") },
		"type":         func(d *amqp.Delivery) { d.Type = "refund" },
		"content type": func(d *amqp.Delivery) { d.ContentType = "text/html" },
		"shifted":      func(d *amqp.Delivery) { d.Type, d.ContentType = "chargetext", "/plain" },
	} {
		other := request
		change(&other)
		_, err := handle(t.Context(), other)
		require.ErrorIs(t, err, idempotency.ErrKeyReused, name)
	}

	// A reply that nobody could get is found before the work is committed.
	for body, want := range map[string]string{"not stored": "not valid UTF-8", "not on the wire": "Headers", "too long": "Type: 256 bytes"} {
		_, err := handle(t.Context(), amqp.Delivery{MessageId: body, Body: []byte(body)})
		require.ErrorContains(t, err, want)
		require.Equal(t, 1, d.balance("a"), body)
	}
	for range 2 {
		got, err := handle(t.Context(), amqp.Delivery{MessageId: "empty", Body: []byte("empty")})
		require.NoError(t, err)
		require.Equal(t, amqp.Publishing{}, got)
		got, err = handle(t.Context(), amqp.Delivery{MessageId: "fails", Body: []byte("fails")})
		require.ErrorIs(t, err, errWork)
		require.Equal(t, amqp.Publishing{}, got)
	}
	_, err := handle(t.Context(), amqp.Delivery{})
	require.ErrorIs(t, err, idempotency.ErrNoKey)

	_, err = inbox.DoResult(t.Context(), "foreign", []byte("x"), func(context.Context, pgx.Tx) ([]byte, error) { return []byte("no reply"), nil })
	require.NoError(t, err)
	require.Nil(t, inbox.HandleReply(nil))
}
