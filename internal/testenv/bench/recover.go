package main

import (
	"context"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

const (
	cuts       = 3
	calm       = 6 // before each cut, in measured times of a run
	publishers = 4
	redial     = 100 * time.Millisecond // what the raw side waits before it dials again
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

func (w *watch) deliveredBody(body []byte) { w.saw(sentAt(body), &w.delivered) }

// rounds cuts the connections again and again; the figures are the medians of the times to publish and to deliver.
func (w *watch) rounds(ctx context.Context, s spec) (f figures, err error) {
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
		s.proxy.Cut()
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
func recoverRaw(ctx context.Context, s spec) (figures, error) {
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
	f, err := w.rounds(ctx, s)
	stop()
	wg.Wait()
	return f, err
}

func publishUntilLost(ctx context.Context, s spec, w *watch) error {
	conn, err := s.dialRaw()
	if err != nil {
		return err
	}
	defer conn.Close()
	c, err := s.rawChannel(conn)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	s.publishAll(ctx, w, func(body []byte) error {
		err := c.publish(body)
		if err != nil {
			stop()
		}
		return err
	})
	return nil
}

// publishAll publishes until ctx ends.
func (s spec) publishAll(ctx context.Context, w *watch, publish func(body []byte) error) {
	var wg sync.WaitGroup
	for range publishers {
		wg.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				if publish(stamped(s.Size, began)) == nil {
					w.publishedAt(began)
				}
			}
		})
	}
	wg.Wait()
}

func consumeUntilLost(ctx context.Context, s spec, w *watch) error {
	conn, err := s.dialRaw()
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	_, in, err := s.deliveries(conn, rawPrefetch)
	if err != nil {
		return err
	}
	for d := range in {
		w.deliveredBody(d.Body)
		_ = d.Ack(false)
	}
	return nil
}

// recoverOurs leaves it to the defaults.
func recoverOurs(ctx context.Context, s spec, conn *reconnect.Conn) (figures, error) {
	producer, err := workqueue.NewProducer(conn, s.workQueue(), reconnect.PublisherConfig{})
	if err != nil {
		return figures{}, err
	}
	var w watch
	worker, err := workqueue.NewWorker(conn, s.workQueue(), func(_ context.Context, d amqp.Delivery) error { w.deliveredBody(d.Body); return nil },
		workqueue.WorkerConfig{Prefetch: rawPrefetch})
	if err != nil {
		return figures{}, err
	}
	return during(ctx, worker, func(ctx context.Context) (figures, error) {
		life, stop := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() {
			s.publishAll(life, &w, func(body []byte) error { return producer.Publish(life, amqp.Publishing{Body: body}) })
		})
		f, err := w.rounds(ctx, s)
		stop()
		wg.Wait()
		return f, err
	})
}
