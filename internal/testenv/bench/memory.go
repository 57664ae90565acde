package main

import (
	"context"
	"errors"
	"runtime"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

// memory is what is in use, stacks included, after a collection.
func memory() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what is in a sync.Pool outlives one collection
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc + m.StackInuse)
}

// idleRaw has so many consumers, each with a channel and a goroutine.
func idleRaw(_ context.Context, s spec, conn *amqp.Connection) (f figures, err error) {
	before := memory()
	for range s.Callers {
		_, in, err := s.deliveries(conn, 1)
		if err != nil {
			return f, err
		}
		go func() {
			for d := range in {
				_ = d.Ack(false)
			}
		}()
	}
	f.Memory = (memory() - before) / float64(s.Callers)
	return f, nil
}

// idleOurs is one Worker with so many handlers at once.
func idleOurs(ctx context.Context, s spec, conn *reconnect.Conn) (f figures, err error) {
	if _, err := conn.Inspect(ctx, s.Queue); err != nil { // so that there is a connection
		return f, err
	}
	before := memory()
	w, err := workqueue.NewWorker(conn, s.workQueue(), func(context.Context, amqp.Delivery) error { return nil }, workqueue.WorkerConfig{Concurrency: s.Callers})
	if err != nil {
		return f, err
	}
	return during(ctx, w, func(ctx context.Context) (f figures, err error) {
		err = s.until(ctx, func(q amqp.Queue) bool { return q.Consumers == s.Callers })
		f.Memory = (memory() - before) / float64(s.Callers)
		return f, err
	})
}

// until looks at the queue, past the proxy, until it is as it should be.
func (s spec) until(ctx context.Context, ok func(amqp.Queue) bool) error {
	s.proxy = nil
	conn, err := s.dialRaw()
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	for {
		q, err := ch.QueueDeclarePassive(s.Queue, true, false, false, false, nil)
		if err != nil || ok(q) {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// senders is how many share what is in flight: a Publisher's window has room for 65,535. still is how long no more of it
// arrives once all has.
const (
	senders = 2
	still   = 500 * time.Millisecond
)

// sender has sent a message already, so that its channel is open; publish sends its share of what is in flight and waits
// for the confirms.
type sender struct {
	publish func() error
	close   func() error
}

// inFlightRaw has so many messages sent whose confirms are held up.
func inFlightRaw(ctx context.Context, s spec) (figures, error) {
	return s.inFlight(ctx, func(n int) (sender, error) {
		conn, err := s.dialRaw()
		if err != nil {
			return sender{}, err
		}
		c, err := s.rawChannel(conn)
		if err != nil {
			return sender{}, errors.Join(err, conn.Close())
		}
		publish := func() error {
			pending := make([]*amqp.DeferredConfirmation, n)
			for i := range pending {
				if pending[i], err = c.send(c.body); err != nil {
					return err
				}
			}
			for _, confirm := range pending {
				if !confirm.Wait() {
					return errUnconfirmed
				}
			}
			return nil
		}
		return sender{publish, conn.Close}, c.publish(c.body)
	})
}

func inFlightOurs(ctx context.Context, s spec) (figures, error) {
	return s.inFlight(ctx, func(n int) (sender, error) {
		conn, err := s.dialOurs(ctx)
		if err != nil {
			return sender{}, err
		}
		p, err := conn.NewPublisher(reconnect.PublisherConfig{Window: n, ConfirmTimeout: -1})
		if err != nil {
			return sender{}, errors.Join(err, conn.Close(ctx))
		}
		batch := s.batchOf(n)
		return sender{
			func() error { return p.PublishBatch(ctx, batch) }, func() error { return conn.Close(context.Background()) },
		}, p.PublishBatch(ctx, batch[:1])
	})
}

// inFlight measures while the messages have arrived and the senders are not told so.
func (s spec) inFlight(ctx context.Context, newSender func(n int) (sender, error)) (f figures, err error) {
	var sending [senders]sender
	for i := range sending {
		if sending[i], err = newSender(s.Callers / senders); err != nil {
			return f, err
		}
		defer func() { err = errors.Join(err, sending[i].close()) }()
	}
	before := memory()
	s.proxy.FreezeToClient()
	done := make(chan error, senders)
	for _, one := range sending {
		go func() { done <- one.publish() }()
	}
	arrived, err := s.settled(ctx)
	if err != nil {
		return f, err
	}
	f.Memory = (memory() - before) / float64(arrived-senders)
	s.proxy.Heal()
	for range sending {
		err = errors.Join(err, <-done)
	}
	return f, err
}

// settled waits until no more messages arrive and returns how many there are. A Publisher lets no queue that confirms nothing
// have its whole window, so they may be fewer than were asked for.
func (s spec) settled(ctx context.Context) (arrived int, err error) {
	since := time.Now()
	err = s.until(ctx, func(q amqp.Queue) bool {
		if q.Messages != arrived {
			arrived, since = q.Messages, time.Now()
		}
		return arrived > senders && time.Since(since) > still
	})
	return arrived, err
}
