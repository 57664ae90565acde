package reconnect

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every return must reach its own caller before the confirmation is taken for success.
func TestReturnsOfManyCallers(t *testing.T) {
	p := newPubTest(t, PublisherConfig{})
	queue := p.queue(nil)
	require.NoError(t, p.publish("", queue, "warm"))
	for _, procs := range []int{1, 2} {
		t.Run(fmt.Sprintf("GOMAXPROCS=%d", procs), func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
			var returned atomic.Int64
			ctx := within(t, 2*time.Minute)
			concurrently(16, func(i int) {
				for n := range 1000 {
					id := fmt.Sprintf("%d/%d", i, n)
					err := p.p.Publish(ctx, "", queue+".missing", amqp.Publishing{MessageId: id})
					if r, ok := err.(*ReturnedError); ok && r.MessageID == id {
						returned.Add(1)
					}
				}
			})
			assert.EqualValues(t, 16_000, returned.Load())
		})
	}
}

// One event under one MessageId to two keys, of which one leads nowhere.
func TestReturnsWithOneIDAndTwoKeys(t *testing.T) {
	p := newPubTest(t, PublisherConfig{})
	exchange, queue := p.exchange("bound")
	require.NoError(t, p.publish(exchange, "bound", "warm"))
	concurrently(16, func(i int) {
		for n := range 100 {
			msg := amqp.Publishing{MessageId: fmt.Sprintf("%d/%d", i, n)}
			concurrently(2, func(which int) {
				key := []string{"bound", "unbound"}[which]
				err := p.p.Publish(within(t, 20*time.Second), exchange, key, msg)
				if key == "bound" {
					assert.NoError(t, err)
				} else if r, ok := err.(*ReturnedError); assert.True(t, ok, "%v", err) {
					assert.Equal(t, "unbound", r.Key)
				}
			})
		}
	})
	assert.Len(t, p.drain(queue), 1601)
}

// The same exchange, key and MessageId many times in flight: each gets its own return, also while the key becomes bound.
func TestReturnsOfEqualMessages(t *testing.T) {
	p := newPubTest(t, PublisherConfig{})
	exchange, queue := p.exchange("bound")
	require.NoError(t, p.publish(exchange, "bound", "warm"))
	headers := amqp.Table{"mine": "yes", markHeader: int64(7)} // as when a message that was taken is sent on
	var confirmed, returned atomic.Int64
	concurrently(16, func(i int) {
		for n := range 100 {
			if i == 0 && n == 50 {
				assert.NoError(t, p.raw.QueueBind(queue, "later", exchange, false, nil))
			}
			err := p.p.Publish(within(t, 20*time.Second), exchange, "later", amqp.Publishing{MessageId: "same", Headers: headers})
			if _, ok := err.(*ReturnedError); ok {
				returned.Add(1)
			} else if assert.NoError(t, err) {
				confirmed.Add(1)
			}
		}
	})
	assert.Equal(t, amqp.Table{"mine": "yes", markHeader: int64(7)}, headers)
	assert.EqualValues(t, 1600, confirmed.Load()+returned.Load())
	assert.Positive(t, returned.Load())
	got := p.drain(queue)
	assert.Len(t, got, int(confirmed.Load())+1, "what arrived is what was confirmed")
	for _, d := range got[1:] {
		assert.Equal(t, "yes", d.Headers["mine"])
	}
}
