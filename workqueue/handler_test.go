package workqueue_test

import (
	"context"
	"errors"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

func ignore(context.Context, amqp.Delivery) error { return nil }

// lazyConn is a Conn that never connects.
func lazyConn(t *testing.T) *reconnect.Conn {
	t.Helper()
	conn, err := reconnect.Dial(t.Context(), "amqp://localhost:1/", reconnect.Config{Lazy: true, Logger: quiet})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(context.Background())) })
	return conn
}

func TestJSON(t *testing.T) {
	type job struct{ ID int }
	var got job
	h := workqueue.JSON(func(_ context.Context, j job) error { got = j; return nil })
	require.NoError(t, h(t.Context(), amqp.Delivery{Body: []byte(`{"ID":42}`)}))
	require.Equal(t, job{42}, got)

	for name, body := range map[string]string{"empty": "", "null": "null", "trailing": `{"ID":1} {"ID":2}`, "wrong type": `{"ID":"x"}`, "not JSON": "{"} {
		t.Run(name, func(t *testing.T) {
			err := h(t.Context(), amqp.Delivery{MessageId: "m-1", Body: []byte(body)})
			require.ErrorContains(t, err, "m-1")
			var permanent interface{ Permanent() bool }
			require.ErrorAs(t, err, &permanent)
			require.True(t, permanent.Permanent())
		})
	}
	require.NoError(t, workqueue.JSON(func(_ context.Context, j *job) error { require.Nil(t, j); return nil })(
		t.Context(), amqp.Delivery{Body: []byte("null")}), "null is a value of a pointer")
	failure := errors.New("no")
	require.Equal(t, failure, workqueue.JSON(func(context.Context, job) error { return failure })(
		t.Context(), amqp.Delivery{Body: []byte("{}")}), "the handler's own error is passed on as it is")
}
