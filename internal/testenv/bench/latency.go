package main

import (
	"context"
	"encoding/binary"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

// pace is that of a run which measures the time from a publish to its handler: 500 messages a second.
const pace = 2 * time.Millisecond

// patience is how many times longer than others such a run takes: its 99th percentile would be two messages otherwise.
const patience = 4

// trips notes how long messages are under way. Its receive is called by one goroutine at a time.
type trips struct {
	times []float64
	want  int
	done  chan struct{}
}

func newTrips(s spec) *trips {
	want := max(1, int(patience*s.For/pace))
	return &trips{times: make([]float64, 0, want), want: want, done: make(chan struct{})}
}

func (t *trips) receive(body []byte) {
	if len(t.times) == t.want {
		return
	}
	t.times = append(t.times, float64(time.Since(sentAt(body)).Nanoseconds())/1e3)
	if len(t.times) == t.want {
		close(t.done)
	}
}

// run publishes at the pace, each message with the time, until all were received; the first tenth warms up.
func (t *trips) run(ctx context.Context, s spec, publish func(body []byte) error) (figures, error) {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := publish(stamped(s.Size, time.Now())); err != nil {
				return figures{}, err
			}
		case <-t.done:
			var f figures
			f.P50, f.P99 = quantiles(t.times[t.want/10:])
			return f, nil
		case <-ctx.Done():
			return figures{}, context.Cause(ctx)
		}
	}
}

// latencyRaw publishes and consumes on two connections, as ours does.
func latencyRaw(ctx context.Context, s spec, conn *amqp.Connection) (figures, error) {
	c, err := s.rawChannel(conn)
	if err != nil {
		return figures{}, err
	}
	consuming, err := s.dialRaw()
	if err != nil {
		return figures{}, err
	}
	defer consuming.Close()
	_, in, err := s.deliveries(consuming, rawPrefetch)
	if err != nil {
		return figures{}, err
	}
	t := newTrips(s)
	go func() {
		for d := range in {
			t.receive(d.Body)
			_ = d.Ack(false)
		}
	}()
	return t.run(ctx, s, c.publish)
}

func latencyOurs(ctx context.Context, s spec, conn *reconnect.Conn) (figures, error) {
	producer, err := workqueue.NewProducer(conn, s.workQueue(), reconnect.PublisherConfig{})
	if err != nil {
		return figures{}, err
	}
	t := newTrips(s)
	worker, err := workqueue.NewWorker(conn, s.workQueue(), func(_ context.Context, d amqp.Delivery) error { t.receive(d.Body); return nil },
		workqueue.WorkerConfig{Prefetch: rawPrefetch})
	if err != nil {
		return figures{}, err
	}
	return during(ctx, worker, func(ctx context.Context) (figures, error) {
		return t.run(ctx, s, func(body []byte) error { return producer.Publish(ctx, amqp.Publishing{Body: body}) })
	})
}

// stamped returns a body with the time in it, and sentAt that time.
func stamped(size int, now time.Time) []byte {
	body := make([]byte, max(size, 8))
	binary.BigEndian.PutUint64(body, uint64(now.UnixNano()))
	return body
}

func sentAt(body []byte) time.Time { return time.Unix(0, int64(binary.BigEndian.Uint64(body))) }
