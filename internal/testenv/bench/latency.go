package main

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

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
	want := int(patience * s.For / pace)
	return &trips{times: make([]float64, 0, want), want: want, done: make(chan struct{})}
}

func (t *trips) receive(body []byte) {
	if len(t.times) == t.want {
		return
	}
	t.times = append(t.times, float64(time.Now().UnixNano()-int64(binary.BigEndian.Uint64(body)))/1e3)
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

// latencyRaw publishes and consumes on two connections.
func latencyRaw(ctx context.Context, s spec) (figures, error) {
	c, closing, err := s.rawChannel()
	if err != nil {
		return figures{}, err
	}
	conn, err := s.dialRaw()
	if err != nil {
		return figures{}, errors.Join(err, closing())
	}
	f, err := latencyOn(ctx, s, c, conn)
	return f, errors.Join(err, conn.Close(), closing())
}

func latencyOn(ctx context.Context, s spec, c *rawChannel, conn *amqp.Connection) (figures, error) {
	ch, err := conn.Channel()
	if err != nil {
		return figures{}, err
	}
	if err := ch.Qos(rawPrefetch, 0, false); err != nil {
		return figures{}, err
	}
	in, err := ch.Consume(s.Queue, "", false, false, false, false, nil)
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

func latencyOurs(ctx context.Context, s spec) (figures, error) {
	conn, err := s.dialOurs(ctx)
	if err != nil {
		return figures{}, err
	}
	defer conn.Close(context.Background())
	producer, err := workqueue.NewProducer(conn, s.workQueue(), publisherDefaults)
	if err != nil {
		return figures{}, err
	}
	t := newTrips(s)
	worker, err := workqueue.NewWorker(conn, s.workQueue(), func(_ context.Context, d amqp.Delivery) error { t.receive(d.Body); return nil },
		workqueue.WorkerConfig{Prefetch: rawPrefetch})
	if err != nil {
		return figures{}, err
	}
	life, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- worker.Run(life) }()
	f, err := t.run(ctx, s, func(body []byte) error { return producer.Publish(ctx, amqp.Publishing{Body: body}) })
	stop()
	return f, errors.Join(err, <-done)
}
