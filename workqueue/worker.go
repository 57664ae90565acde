package workqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/consume"
	"github.com/warrenmq/warren/internal/prefix"
	"github.com/warrenmq/warren/internal/wire"
	"github.com/warrenmq/warren/reconnect"
)

// WorkerConfig says how a Worker consumes. The zero value is one handler at a time, one message fetched at a time, which
// is fair for long jobs: a message goes to a worker that is free. For short jobs raise Prefetch.
type WorkerConfig struct {
	// Concurrency is the number of handlers that run at once, each with a channel of its own on which messages are
	// handled in order. A connection has channels for about 2,000. Default 1.
	Concurrency int

	// Prefetch is how many messages each of them holds at most, 1 to 65535. Above 1 a worker begins with one and
	// doubles while handlers finish, and acknowledges several messages at once. Default 1; for a batch worker twice the
	// BatchSize.
	Prefetch int

	// HandlerTimeout ends a handler's context; times the handler calls that a full prefetch takes (Prefetch, and for
	// batches Prefetch over BatchSize) it must not exceed the Conn's ConsumerTimeout, which the broker enforces by
	// closing the channel. -1: none. Default 5/6 of ConsumerTimeout over those calls: 25 min at Prefetch 1, 15 s at 100,
	// 1.5 s at 1,000.
	HandlerTimeout time.Duration

	// ShutdownTimeout is how long handlers may go on after Run's context has ended. Default 30 s; -1 for as long as they
	// take.
	ShutdownTimeout time.Duration

	// PerSecond is how many handlers all of this Worker may start in a second. What waits for that is in the prefetch,
	// so keep Prefetch low beside it. Default: no limit.
	PerSecond float64

	// BatchSize and BatchWait say when a batch is handed to a BatchHandler: with BatchSize messages, or BatchWait after
	// the first. Defaults 100 and 50 ms.
	BatchSize int
	BatchWait time.Duration
}

// Worker handles the messages of one queue. Any number of Workers, in any number of processes, may share a queue; each
// message goes to one of them.
type Worker struct {
	queue string
	loop  *consume.Loop
}

// NewWorker returns a Worker that hands each message of q to h. It does no I/O. It returns every fault of q and cfg at
// once, each naming its field.
func NewWorker(conn *reconnect.Conn, q Queue, h Handler, cfg WorkerConfig) (*Worker, error) {
	return newWorker(conn, q, cfg, func(c *consume.Config) { c.Handler = h },
		errors.Join(unset("BatchSize", cfg.BatchSize != 0), unset("BatchWait", cfg.BatchWait != 0)))
}

// NewBatchWorker returns a Worker that hands the messages of q to h in batches, which are settled together.
func NewBatchWorker(conn *reconnect.Conn, q Queue, h BatchHandler, cfg WorkerConfig) (*Worker, error) {
	return newWorker(conn, q, cfg, func(c *consume.Config) {
		c.Batch, c.BatchSize, c.BatchWait = h, cfg.BatchSize, cfg.BatchWait
	}, nil)
}

func newWorker(conn *reconnect.Conn, q Queue, cfg WorkerConfig, handler func(*consume.Config), faults error) (*Worker, error) {
	if conn == nil {
		return nil, errors.New("workqueue: worker: conn: nil")
	}
	deadLetter, err := deadLetterer(conn, q)
	common, topology := conn.Config(), q.Topology()
	c := consume.Config{
		Name: cmp.Or(q.Name, "unnamed"), Queue: cmp.Or(q.Name, "unnamed"), // that it has none is a fault of q
		Concurrency: cfg.Concurrency, Prefetch: cfg.Prefetch,
		SlowStart: !q.SingleActiveConsumer, Ordered: q.SingleActiveConsumer, Quorum: !q.classic(),
		HandlerTimeout: cfg.HandlerTimeout, ShutdownTimeout: cfg.ShutdownTimeout, PerSecond: cfg.PerSecond,
		AbandonAfter: common.AbandonAfter, ConsumerTimeout: common.ConsumerTimeout, MaxBody: common.MaxBody,
		Supervise: func(ctx context.Context, name string, fn func(context.Context, *amqp.Channel) error) error {
			return conn.Supervise(ctx, name, topology, fn)
		},
		DeadLetter:     deadLetter,
		Logger:         common.Logger,
		TracerProvider: common.TracerProvider, MeterProvider: common.MeterProvider, Propagator: common.Propagator,
	}
	handler(&c)
	loop, loopFaults := consume.New(c)
	if err := errors.Join(q.validate(), err, faults, loopFaults); err != nil {
		return nil, fmt.Errorf("workqueue: worker of queue %q: %w", q.Name, err)
	}
	return &Worker{q.Name, loop}, nil
}

// deadLetterer returns how failures of a classic queue reach the dead-letter queue: by a confirmed copy, since the broker
// itself moves them at most once. A quorum queue does it safely, and the loop only rejects.
func deadLetterer(conn *reconnect.Conn, q Queue) (func(context.Context, amqp.Delivery, error) error, error) {
	if !q.classic() || q.NoDeadLetter {
		return nil, nil
	}
	pub, err := conn.NewPublisher(reconnect.PublisherConfig{Shared: true})
	if err != nil {
		return nil, err
	}
	limits := wire.Limits{MaxBody: conn.Config().MaxBody}
	return func(ctx context.Context, d amqp.Delivery, _ error) error {
		dead := wire.Copy(d)
		if err := wire.Publishing(q.DeadLetterExchange, q.DeadLetterQueue(), &dead, limits); err != nil {
			return fmt.Errorf("%w: %w", consume.ErrNoCopy, err) // it came, but is more than we send
		}
		return pub.Publish(ctx, q.DeadLetterExchange, q.DeadLetterQueue(), dead)
	}, nil
}

// Run consumes until ctx ends, through every loss of its channels and connections. Then it takes nothing new, lets
// started handlers finish for up to ShutdownTimeout, settles, hands back what was not started, and returns nil, or an
// error that counts the handlers it had to abandon. It returns earlier only for what cannot be mended: a
// *reconnect.TopologyError, or reconnect.ErrClosed. It may be called again afterwards, but not twice at once.
func (w *Worker) Run(ctx context.Context) error {
	if err := w.loop.Run(ctx); err != nil {
		return prefix.Wrap(fmt.Sprintf("workqueue: worker of queue %q", w.queue), err)
	}
	return nil
}

// Ready returns a channel that is closed once every handler's channel has consumed for the first time. It is not closed
// when Run ends before that: wait for either.
func (w *Worker) Ready() <-chan struct{} { return w.loop.Ready() }

// Pause makes the Worker take nothing new; what it has not started goes back to the queue, which up to RabbitMQ 4.2 counts
// towards the DeliveryLimit. It does not wait.
func (w *Worker) Pause() { w.loop.Pause() }

// Resume ends a Pause.
func (w *Worker) Resume() { w.loop.Resume() }

func unset(field string, set bool) error {
	if set {
		return fmt.Errorf("%s: only for a batch worker", field)
	}
	return nil
}
