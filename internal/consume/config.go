package consume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Handler handles one message. Its error decides what becomes of the message (see the package comment).
type Handler = func(ctx context.Context, d amqp.Delivery) error

// BatchHandler handles several messages. nil: all are done. An error that unwraps into exactly len(ds) errors speaks of each, nil
// entries are done. Any other error speaks of all.
type BatchHandler = func(ctx context.Context, ds []amqp.Delivery) error

// ErrNoCopy is what Config.DeadLetter returns, wrapped, for a message of which no copy can be sent, now or ever.
var ErrNoCopy = errors.New("no copy can be sent")

// Config describes a Loop. Name, Queue, Supervise and one of the handlers are required.
type Config struct {
	Name  string // of the worker in state, log and consumer tags
	Queue string // queue consumed; must exist when Supervise calls, unless Open makes it

	// Open, when set, is called with each fresh channel, before anything else and also while paused, and returns the queue to
	// consume on it; shut is called when that channel is no longer used. An error ends the channel like any other. It has the
	// channel to itself; its ctx ends with a shutdown and with the channel.
	Open func(ctx context.Context, ch *amqp.Channel) (queue string, shut func(), err error)
	// Watch, when set, is given the queue as the broker sees it, and when that was asked for: as soon as the first worker's
	// channel is open, and again after each pause that it returns. It must not block.
	Watch func(q amqp.Queue, asked time.Time) (next time.Duration)

	Handler   Handler       // one message at a time, or
	Batch     BatchHandler  // several
	BatchSize int           // of a batch at most; default 100; not above Prefetch
	BatchWait time.Duration // how long the first message of a batch waits for others; default 50 ms

	Concurrency int  // workers, each with a channel of its own and handling in order; default 1
	Prefetch    int  // unacknowledged messages of each worker, 1..65535; default 1, batch: two batches
	SlowStart   bool // begin at prefetch 1 after each start and loss, and double; not on auto-delete queues
	Ordered     bool // the queue has a single active consumer: see the package comment; SlowStart is ignored
	Quorum      bool // the queue is a quorum queue: a close of the channel alone does not prove that all was settled

	// HandlerTimeout ends a handler's context. Times Prefetch (batch: times the batches in the prefetch) it must not be above
	// ConsumerTimeout; default 5/6 of that; -1 none.
	HandlerTimeout  time.Duration
	ShutdownTimeout time.Duration // grace for started handlers when Run's ctx ends; default 30 s; -1 no limit
	AbandonAfter    time.Duration // given after the grace to handlers that ignore their context; default 5 s; -1 no limit
	ConsumerTimeout time.Duration // the broker's; default 30 min; -1 none

	PerSecond float64 // handlers started, over all workers together; default no limit
	MaxBody   int     // bytes; a larger body is dead-lettered undecoded; <= 0 no limit

	// Supervise calls fn with a fresh channel, again whenever that was lost, until ctx ends and fn has returned (nil), or for good
	// when nothing can be mended (its error). fn's ctx carries ctx's values and a state reporter (internal/report), and ends with ctx,
	// or with a cause when its channel is lost. A channel that fn itself closed counts as lost if fn returns an error.
	Supervise func(ctx context.Context, name string, fn func(ctx context.Context, ch *amqp.Channel) error) error

	// DeadLetter stores a copy of a failed message where the broker's own dead-lettering is not safe; nil: the broker's is used. After
	// nil the message is acknowledged; ErrNoCopy leaves it to the broker after all; any other error is "not now", and then DeadLetter
	// alone is called again, not the handler.
	DeadLetter func(ctx context.Context, d amqp.Delivery, cause error) error

	// Requeue, when set, puts a copy of a message that is handed back, and that no handler has begun with, into the queue
	// instead: what comes back otherwise is marked as redelivered, which says that a handler may have run. After nil the message is
	// acknowledged; after an error it is handed back all the same. It has up to 5 s for all that a worker hands back.
	Requeue func(ctx context.Context, d amqp.Delivery) error

	Stamp bool // the handler's context says when its message came: see Arrived

	Logger *slog.Logger // nil: slog.Default()

	// Where telemetry goes; nil: OpenTelemetry's global ones.
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider
	Propagator     propagation.TextMapPropagator
}

// withDefaults returns c with what was left out filled in, or all that is wrong with it.
func (c Config) withDefaults() (Config, error) {
	c.fill()
	errs := []error{
		missing("Name", c.Name == ""), missing("Queue", c.Queue == ""), missing("Supervise", c.Supervise == nil),
		c.checkHandlers(),
		between("Concurrency", c.Concurrency, math.MaxInt32), between("Prefetch", c.Prefetch, math.MaxUint16),
		duration("ShutdownTimeout", c.ShutdownTimeout), duration("AbandonAfter", c.AbandonAfter),
		duration("ConsumerTimeout", c.ConsumerTimeout), c.checkHandlerTimeout(),
	}
	if c.PerSecond < 0 || math.IsNaN(c.PerSecond) || math.IsInf(c.PerSecond, 0) {
		errs = append(errs, fmt.Errorf("PerSecond: %v, must be a rate, or 0 for no limit", c.PerSecond))
	}
	return c, errors.Join(errs...)
}

func (c *Config) fill() {
	setDefault(&c.Concurrency, 1)
	if c.Batch != nil {
		setDefault(&c.BatchSize, 100)
		setDefault(&c.BatchWait, 50*time.Millisecond)
		setDefault(&c.Prefetch, max(1, min(2*c.BatchSize, math.MaxUint16)))
	}
	setDefault(&c.Prefetch, 1)
	setDefault(&c.ShutdownTimeout, 30*time.Second)
	setDefault(&c.AbandonAfter, 5*time.Second)
	setDefault(&c.ConsumerTimeout, 30*time.Minute)
	if c.HandlerTimeout == 0 {
		c.HandlerTimeout = -1
		if c.ConsumerTimeout > 0 {
			c.HandlerTimeout = max(1, c.keep()/time.Duration(max(1, c.calls())))
		}
	}
	if c.Ordered {
		c.SlowStart = false
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
}

// calls is how many handler calls a full prefetch takes.
func (c *Config) calls() int {
	if c.Batch == nil || c.BatchSize < 1 {
		return c.Prefetch
	}
	return (c.Prefetch + c.BatchSize - 1) / c.BatchSize
}

// keep is how long after its delivery a message may be kept at most: 5/6 of the consumer timeout, 0 without one.
func (c *Config) keep() time.Duration {
	if c.ConsumerTimeout < 0 {
		return 0
	}
	return c.ConsumerTimeout / 6 * 5
}

// first is the prefetch of a generation's first consumer.
func (c *Config) first() int {
	if c.SlowStart {
		return 1
	}
	return c.Prefetch
}

func (c *Config) checkHandlers() error {
	switch {
	case c.Handler == nil && c.Batch == nil:
		return errors.New("Handler: missing")
	case c.Handler != nil && c.Batch != nil:
		return errors.New("Handler: given beside Batch, only one may be")
	case c.Batch == nil:
		return nil
	}
	var errs []error
	if c.BatchSize < 1 {
		errs = append(errs, fmt.Errorf("BatchSize: %d, must be positive, or 0 for 100", c.BatchSize))
	} else if c.BatchSize > c.Prefetch {
		errs = append(errs, fmt.Errorf("BatchSize: %d, must not be above Prefetch, which is %d here and at most 65535", c.BatchSize, c.Prefetch))
	}
	if c.BatchWait < 0 {
		errs = append(errs, fmt.Errorf("BatchWait: %v, must be positive, or 0 for 50ms", c.BatchWait))
	}
	return errors.Join(errs...)
}

func (c *Config) checkHandlerTimeout() error {
	if err := duration("HandlerTimeout", c.HandlerTimeout); err != nil || c.HandlerTimeout < 0 || c.ConsumerTimeout <= 0 {
		return err
	}
	if n := max(1, c.calls()); c.HandlerTimeout > c.ConsumerTimeout/time.Duration(n) {
		return fmt.Errorf("HandlerTimeout: %v for each of %d prefetched calls is above ConsumerTimeout (%v)", c.HandlerTimeout, n, c.ConsumerTimeout)
	}
	return nil
}

func setDefault[T int | time.Duration](v *T, def T) {
	if *v == 0 {
		*v = def
	}
}

func missing(field string, is bool) error {
	if is {
		return fmt.Errorf("%s: missing", field)
	}
	return nil
}

func between(field string, v, most int) error {
	if v < 1 || v > most {
		return fmt.Errorf("%s: %d, must be between 1 and %d, or 0 for the default", field, v, most)
	}
	return nil
}

// duration accepts a positive one and -1.
func duration(field string, d time.Duration) error {
	if d < -1 {
		return fmt.Errorf("%s: %v, must be positive, or -1", field, d)
	}
	return nil
}
