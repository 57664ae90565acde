package reconnect

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

func TestZZ(t *testing.T) {
	p := newPubTest(t, PublisherConfig{ConfirmTimeout: time.Second})
	good := p.queue(nil)
	bad := p.queue(amqp.Table{"x-queue-type": "quorum"})
	require.NoError(t, p.publish("", good, "a"))
	require.NoError(t, p.publish("", bad, "a"))
	resume := p.broker.StallQueue(t, bad)
	ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	var nGood, nBad, eGood atomic.Int64
	var lastErr, lastBad atomic.Value
	for range 32 {
		wg.Go(func() {
			for ctx.Err() == nil {
				c, cl := context.WithTimeout(t.Context(), 3*time.Second)
				err := p.p.Publish(c, "", bad, plainText("bad"))
				cl()
				lastBad.Store(fmt.Sprint(err))
				nBad.Add(1)
			}
		})
	}
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				c, cl := context.WithTimeout(t.Context(), 3*time.Second)
				err := p.p.Publish(c, "", good, plainText("good"))
				cl()
				if err != nil { eGood.Add(1); lastErr.Store(err.Error()) } else { nGood.Add(1) }
			}
		})
	}
	began := time.Now()
	for ctx.Err() == nil {
		<-time.After(time.Second)
		t.Logf("%v good %d (errors %d: %v) bad %d (%v) ", time.Since(began).Round(time.Second), nGood.Swap(0), eGood.Swap(0), lastErr.Load(), nBad.Swap(0), lastBad.Load())
		b := time.Now()
		pc, pcl := context.WithTimeout(t.Context(), time.Second)
		err := p.conn.Ping(pc)
		pcl()
		t.Logf("ping %v after %v; state %v", err, time.Since(b), p.conn.State())
	}
	wg.Wait()
	resume()
	b := time.Now()
	t.Log(p.publish("", bad, "a"), p.publish("", good, "a"), time.Since(b))
	time.Sleep(2*time.Second)
	t.Log(p.broker.Queue(t, bad).Ready)
}
