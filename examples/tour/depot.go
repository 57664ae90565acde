package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

// depot is where parcels wait in a queue, and workers deliver them.
type depot struct {
	*tour
	cable    *cable // of the chapter that cuts it
	conn     *reconnect.Conn
	queue    workqueue.Queue
	producer *workqueue.Producer
}

// none is the number of no parcel.
const none = -1

// openDepot connects; close ends it.
func openDepot(ctx context.Context, t *tour, cfg reconnect.Config) (*depot, error) {
	cfg.Logger = t.logger()
	conn, err := reconnect.Dial(ctx, t.url, cfg)
	if err != nil {
		return nil, err
	}
	d := &depot{tour: t, conn: conn, queue: workqueue.Queue{Name: t.name("parcels")}}
	if d.producer, err = workqueue.NewProducer(conn, d.queue, reconnect.PublisherConfig{}); err != nil {
		return nil, errors.Join(err, conn.Close(context.Background()))
	}
	return d, nil
}

// close deletes the queues and disconnects.
func (d *depot) close() error {
	err := d.cleanUp()
	return errors.Join(err, d.conn.Close(context.Background()))
}

// send queues parcels 0 to n-1 and returns when the broker has them safely.
func (d *depot) send(ctx context.Context, n int) error {
	batch := make([]amqp.Publishing, n)
	for i := range batch {
		batch[i] = amqp.Publishing{ContentType: "application/json", Body: fmt.Appendf(nil, `{"Number": %d}`, i)}
	}
	return d.producer.PublishBatch(ctx, batch)
}

// stream sends parcels 0 to n-1 one by one, from two goroutines and without hurry. It returns how many were confirmed.
func (d *depot) stream(ctx context.Context, n int) (int, error) {
	const senders = 2
	var (
		confirmed atomic.Int64
		running   sync.WaitGroup
		errs      [senders]error
	)
	for s := range senders {
		running.Go(func() {
			for i := s; i < n; i += senders {
				if errs[s] = d.producer.PublishJSON(ctx, parcel{Number: i}); errs[s] != nil {
					return
				}
				confirmed.Add(1)
				pause(ctx, 5*time.Millisecond)
			}
		})
	}
	running.Wait()
	return int(confirmed.Load()), errors.Join(errs[:]...)
}

// work runs a worker for each handler while the given function goes on. When that returns they drain.
func (d *depot) work(ctx context.Context, handlers map[string]workqueue.Handler, concurrency int, during func(context.Context) error) error {
	var workers []*workqueue.Worker
	for _, handler := range handlers {
		w, err := workqueue.NewWorker(d.conn, d.queue, handler, workqueue.WorkerConfig{Concurrency: concurrency})
		if err != nil {
			return err
		}
		workers = append(workers, w)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var running sync.WaitGroup
	errs := make([]error, len(workers))
	for i, w := range workers {
		running.Go(func() {
			if errs[i] = w.Run(ctx); errs[i] != nil {
				stop(errs[i]) // alone it would wait for the others for ever
			}
		})
	}
	err := ready(ctx, workers)
	if err == nil {
		err = during(ctx)
	}
	stop(nil)
	running.Wait()
	return errors.Join(append(errs, err)...)
}

// ready waits until all workers consume: a queue gives everything to the first one that comes.
func ready(ctx context.Context, workers []*workqueue.Worker) error {
	for _, w := range workers {
		select {
		case <-w.Ready():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// emptied waits until the queue holds nothing any more, and what was on its way to a worker has arrived there: it looks several
// times, so that a pause of the machine is not all the time there is for that.
func (d *depot) emptied(ctx context.Context) error {
	for empty := 0; empty < 5; empty++ {
		q, err := d.conn.Inspect(ctx, d.queue.Name)
		if err != nil {
			return err
		}
		if q.Messages > 0 {
			empty = -1
		}
		pause(ctx, 20*time.Millisecond)
	}
	return nil
}

// reaches waits until a queue holds so many messages.
func (d *depot) reaches(ctx context.Context, queue string, n int) error {
	for {
		q, err := d.conn.Inspect(ctx, queue)
		if err != nil || q.Messages >= n {
			return err
		}
		pause(ctx, 20*time.Millisecond)
	}
}

// pause waits a while, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// reasons returns why the messages of the dead-letter queue are there, in the broker's words. They stay there.
func (d *depot) reasons(ctx context.Context) ([]string, error) {
	ch, err := d.conn.Channel(ctx)
	if err != nil {
		return nil, err
	}
	defer ch.Close() // what was taken and not acknowledged goes back
	var reasons []string
	for {
		m, ok, err := ch.Get(d.queue.DeadLetterQueue(), false)
		if err != nil || !ok {
			return reasons, err
		}
		reason, _ := m.Headers["x-first-death-reason"].(string)
		reasons = append(reasons, reason)
	}
}

// cleanUp deletes the chapter's queues, also after an error.
func (d *depot) cleanUp() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	topology := d.queue.Topology()
	d.conn.Forget(topology) // a reconnect must not make them anew
	ch, err := d.conn.Channel(ctx)
	if err != nil {
		return err
	}
	defer ch.Close()
	left := 0
	for _, q := range topology.Queues {
		if _, err := ch.QueueDelete(q.Name, false, false, false); err != nil {
			return err
		}
		var missing *amqp.Error
		if _, err := d.conn.Inspect(ctx, q.Name); !errors.As(err, &missing) || missing.Code != amqp.NotFound {
			left++
		}
	}
	d.figure("queues left behind", left, 0)
	return nil
}
