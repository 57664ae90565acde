package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

// warehouse takes events.
type warehouse struct {
	conn  *reconnect.Conn
	queue workqueue.Queue
	stop  func() error

	mu      sync.Mutex
	ids     map[uuid.UUID]string // message id by order
	total   int
	renamed int // events that came again under another id
}

// openWarehouse begins to take events.
func openWarehouse(ctx context.Context, at place) (*warehouse, error) {
	conn, err := reconnect.Dial(ctx, at.Broker, reconnect.Config{Name: "warehouse", Logger: quiet})
	if err != nil {
		return nil, err
	}
	w := &warehouse{conn: conn, queue: workqueue.Queue{Name: at.Queue}, ids: map[uuid.UUID]string{}}
	worker, err := workqueue.NewWorker(conn, w.queue, w.take, workqueue.WorkerConfig{})
	if err != nil {
		return nil, errors.Join(err, conn.Close(context.Background()))
	}
	running, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(running) }()
	w.stop = func() error { cancel(); return <-ended }
	select {
	case <-worker.Ready():
		return w, nil
	case err := <-ended:
		cancel()
		return nil, errors.Join(err, conn.Close(context.Background()))
	}
}

func (w *warehouse) take(_ context.Context, d amqp.Delivery) error {
	var o order
	if err := json.Unmarshal(d.Body, &o); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.total++
	if id, known := w.ids[o.ID]; known && id != d.MessageId {
		w.renamed++
	}
	w.ids[o.ID] = d.MessageId
	return nil
}

// came returns how many events have come, and again how many of them were known already.
func (w *warehouse) came() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.total
}

func (w *warehouse) again() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.total - len(w.ids)
}

// settle waits until n events have come, but not for ever, and a moment longer, in which more of them would.
func (w *warehouse) settle(ctx context.Context, n int) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for more := true; more && ctx.Err() == nil; more = w.came() < n {
		select {
		case <-time.After(300 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// compare says whether every order has arrived, and nothing else.
func (w *warehouse) compare(ctx context.Context, out io.Writer, pool *pgxpool.Pool) error {
	rows, err := pool.Query(ctx, "SELECT id FROM orders")
	if err != nil {
		return err
	}
	ordered, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	lost := 0
	for _, id := range ordered {
		if _, came := w.ids[id]; !came {
			lost++
		}
	}
	fmt.Fprintf(out, "%d orders, %d lost; %d events came more than once, %d of those under another id\n",
		len(ordered), lost, w.total-len(w.ids), w.renamed)
	if lost > 0 || w.renamed > 0 || len(w.ids) != len(ordered) {
		return fmt.Errorf("%d orders, and %d that have arrived, %d under two ids", len(ordered), len(w.ids), w.renamed)
	}
	return nil
}

// close ends it, and deletes its queues.
func (w *warehouse) close() error {
	err := w.stop()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	w.conn.Forget(w.queue.Topology()) // a reconnect must not make it anew
	if ch, openErr := w.conn.Channel(ctx); openErr == nil {
		for _, queue := range []string{w.queue.Name, w.queue.DeadLetterQueue()} {
			_, deleteErr := ch.QueueDelete(queue, false, false, false)
			err = errors.Join(err, deleteErr)
		}
		err = errors.Join(err, ch.Close())
	}
	return errors.Join(err, w.conn.Close(ctx))
}
