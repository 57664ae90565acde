package main

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/workqueue"
)

// How often the connections are cut, how long they live before that, in measured times of a run, how many publish, and how
// long the raw side waits before it dials again.
const (
	cuts       = 3
	calm       = 6
	publishers = 4
	redial     = 100 * time.Millisecond
)

// watch notes, after each cut, the first confirmed publish that began later, and the first delivery of such a message.
type watch struct {
	mu                   sync.Mutex
	cut                  time.Time
	published, delivered time.Time
	both                 chan struct{}
}

func (w *watch) saw(began time.Time, at *time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut.IsZero() || !began.After(w.cut) || !at.IsZero() {
		return
	}
	if *at = time.Now(); !w.published.IsZero() && !w.delivered.IsZero() {
		close(w.both)
	}
}

func (w *watch) publishedAt(began time.Time) { w.saw(began, &w.published) }

func (w *watch) deliveredBody(body []byte) {
	w.saw(time.Unix(0, int64(binary.BigEndian.Uint64(body))), &w.delivered)
}

// body has the time in it.
func stamped(size int, now time.Time) []byte {
	body := make([]byte, max(size, 8))
	binary.BigEndian.PutUint64(body, uint64(now.UnixNano()))
	return body
}

// rounds cuts the connections again and again; the figures are the medians of the times to publish and to deliver.
func (w *watch) rounds(ctx context.Context, s spec, proxy *testenv.FaultProxy) (f figures, err error) {
	var published, delivered []float64
	for range cuts {
		select {
		case <-time.After(calm * s.For):
		case <-ctx.Done():
			return f, context.Cause(ctx)
		}
		w.mu.Lock()
		w.cut, w.published, w.delivered, w.both = time.Now(), time.Time{}, time.Time{}, make(chan struct{})
		w.mu.Unlock()
		proxy.Cut()
		select {
		case <-w.both:
		case <-ctx.Done():
			return f, context.Cause(ctx)
		}
		w.mu.Lock()
		published, delivered = append(published, w.published.Sub(w.cut).Seconds()), append(delivered, w.delivered.Sub(w.cut).Seconds())
		w.mu.Unlock()
	}
	return figures{Published: spreadOf(published).mid, Delivered: spreadOf(delivered).mid}, nil
}

// recoverRaw dials again by hand, after a pause, for publishing and for consuming.
func recoverRaw(ctx context.Context, s spec) (f figures, err error) {
	proxy, err := testenv.NewProxy(s.URL)
	if err != nil {
		return f, err
	}
	defer proxy.Close()
	s.URL = proxy.URL()
	var w watch
	life, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for _, session := range []func(context.Context, spec, *watch) error{publishUntilLost, consumeUntilLost} {
		wg.Go(func() {
			for life.Err() == nil {
				_ = session(life, s, &w) // lost: again
				select {
				case <-time.After(redial):
				case <-life.Done():
				}
			}
		})
	}
	f, err = w.rounds(ctx, s, proxy)
	stop()
	wg.Wait()
	return f, err
}

func publishUntilLost(ctx context.Context, s spec, w *watch) error {
	c, closing, err := s.rawChannel()
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	for range publishers {
		wg.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				if c.publish(stamped(s.Size, began)) != nil {
					return
				}
				w.publishedAt(began)
			}
		})
	}
	wg.Wait()
	return closing()
}

func consumeUntilLost(ctx context.Context, s spec, w *watch) error {
	conn, err := s.dialRaw()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	ch, err := conn.Channel()
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	if err := ch.Qos(rawPrefetch, 0, false); err != nil {
		return errors.Join(err, conn.Close())
	}
	in, err := ch.Consume(s.Queue, "", false, false, false, false, nil)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	for d := range in {
		w.deliveredBody(d.Body)
		_ = d.Ack(false)
	}
	return nil
}

// recoverOurs leaves it to the defaults.
func recoverOurs(ctx context.Context, s spec) (f figures, err error) {
	proxy, err := testenv.NewProxy(s.URL)
	if err != nil {
		return f, err
	}
	defer proxy.Close()
	s.URL = proxy.URL()
	conn, err := s.dialOurs(ctx)
	if err != nil {
		return f, err
	}
	defer conn.Close(context.Background())
	producer, err := workqueue.NewProducer(conn, s.workQueue(), publisherDefaults)
	if err != nil {
		return f, err
	}
	var w watch
	worker, err := workqueue.NewWorker(conn, s.workQueue(), func(_ context.Context, d amqp.Delivery) error { w.deliveredBody(d.Body); return nil },
		workqueue.WorkerConfig{Prefetch: rawPrefetch})
	if err != nil {
		return f, err
	}
	life, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	var ended error
	wg.Go(func() { ended = worker.Run(life) })
	for range publishers {
		wg.Go(func() {
			for life.Err() == nil {
				began := time.Now()
				if producer.Publish(life, amqp.Publishing{Body: stamped(s.Size, began)}) == nil {
					w.publishedAt(began)
				}
			}
		})
	}
	f, err = w.rounds(ctx, s, proxy)
	stop()
	wg.Wait()
	return f, errors.Join(err, ended)
}
