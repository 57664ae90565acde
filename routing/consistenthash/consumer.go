package consistenthash

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/warrenmq/warren/internal/consume"
	"github.com/warrenmq/warren/reconnect"
)

// Consumer is one instance of the consumers of the partitions. It waits in line at every partition, so that what another instance
// leaves goes on at once, and gives back what is more than its share.
type Consumer struct {
	conn       *reconnect.Conn
	partitions Partitions
	parts      []*partition
	running    atomic.Bool

	mu      sync.Mutex // guards what follows
	ready   chan struct{}
	paused  bool
	changed chan struct{} // closed and replaced when paused changes
}

// NewConsumer returns a Consumer that hands the messages of each partition to h, in their order. It does no I/O. It returns every
// fault of p and cfg at once, each naming its field.
func NewConsumer(conn *reconnect.Conn, p Partitions, h Handler, cfg ConsumerConfig) (*Consumer, error) {
	if conn == nil {
		return nil, errors.New("consistenthash: consumer: conn: nil")
	}
	cfg, err := cfg.complete(conn.Config().ConsumerTimeout)
	faults := errors.Join(p.validate(), err)
	if h == nil {
		faults = errors.Join(faults, errors.New("handler: nil"))
	}
	c := &Consumer{conn: conn, partitions: p, ready: make(chan struct{}), changed: make(chan struct{})}
	for i := range min(max(p.Count, 1), maxCount) { // one at least: its loop checks what all have in common
		part, err := c.newPartition(i, h, cfg)
		if err != nil {
			faults = errors.Join(faults, err)
			break
		}
		c.parts = append(c.parts, part)
	}
	if faults != nil {
		return nil, fmt.Errorf("consistenthash: consumer of partitions %q: %w", p.Name, faults)
	}
	return c, nil
}

func (c *Consumer) newPartition(i int, h Handler, cfg ConsumerConfig) (*partition, error) {
	common, queue := c.conn.Config(), c.partitions.Queue(i)
	part := &partition{conn: c.conn, topology: join(
		reconnect.Topology{Exchanges: []reconnect.Exchange{c.partitions.exchange()}}, c.partitions.deadLetters(), c.partitions.partition(i))}
	part.attempts = attempts{cfg: cfg, h: h, log: common.Logger.With("queue", queue)}
	var err error
	part.loop, err = consume.New(consume.Config{
		Name: queue, Queue: queue, Handler: part.attempts.handle, Ordered: true, Quorum: true, Prefetch: cfg.Prefetch,
		HandlerTimeout: cfg.HandlerTimeout, ShutdownTimeout: cfg.ShutdownTimeout, AbandonAfter: common.AbandonAfter,
		ConsumerTimeout: common.ConsumerTimeout, MaxBody: common.MaxBody, Supervise: part.supervise, Logger: common.Logger,
		TracerProvider: common.TracerProvider, MeterProvider: common.MeterProvider, Propagator: common.Propagator,
	})
	return part, err
}

// Run consumes until ctx ends, through every loss of its channels and connections. Then it takes nothing new, lets
// started handlers finish for up to ShutdownTimeout, settles, hands back what was not started, and returns nil, or an
// error that counts the handlers it had to abandon. It returns earlier only for what cannot be mended: ErrCountChanged, a
// *reconnect.TopologyError, or reconnect.ErrClosed. It may be called again afterwards, but not twice at once.
func (c *Consumer) Run(ctx context.Context) error {
	if !c.running.CompareAndSwap(false, true) {
		return fmt.Errorf("consistenthash: the consumer of partitions %q is running already", c.partitions.Name)
	}
	defer c.running.Store(false)
	if err := c.partitions.declareSupervised(ctx, c.conn); err != nil || ctx.Err() != nil {
		return c.explain(err)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer c.unready()
	counted := make(chan struct{})
	var waiter sync.WaitGroup
	waiter.Go(func() { c.awaitReady(ctx, counted) })
	defer waiter.Wait()
	defer stop() // before the waiter is waited for

	errs := make(chan error, len(c.parts)+1)
	for _, part := range c.parts {
		go func() { errs <- part.loop.Run(ctx) }()
	}
	go func() { errs <- c.balance(ctx, counted) }()
	return c.gather(errs, stop)
}

// gather waits for all, stops the others when one has failed, and returns each error once: many partitions may have the same.
func (c *Consumer) gather(errs <-chan error, stop func()) error {
	var all []error
	seen := map[string]bool{}
	for range len(c.parts) + 1 {
		err := <-errs
		if err == nil {
			continue
		}
		stop()
		err = c.explain(err)
		if errors.Is(err, ErrCountChanged) {
			c.conn.Forget(c.partitions.Topology()) // do not put queues back that Resize has removed
		}
		if !seen[err.Error()] {
			seen[err.Error()] = true
			all = append(all, err)
		}
	}
	return errors.Join(all...)
}

// explain says what err means here, and where, and is nil for nil.
func (c *Consumer) explain(err error) error {
	if err == nil {
		return nil
	}
	explained := c.partitions.explain(err)
	if explained == err {
		explained = fmt.Errorf("partitions %q: %w", c.partitions.Name, err)
	}
	return fmt.Errorf("consistenthash: consume: %w", explained)
}

// awaitReady closes what Ready returns once all is bound, consumes and is counted.
func (c *Consumer) awaitReady(ctx context.Context, counted <-chan struct{}) {
	wait := func(ch <-chan struct{}) bool {
		select {
		case <-ch:
			return true
		case <-ctx.Done():
			return false
		}
	}
	for _, part := range c.parts {
		if !wait(part.loop.Ready()) {
			return
		}
	}
	if wait(counted) {
		c.mu.Lock()
		defer c.mu.Unlock()
		close(c.ready)
	}
}

// Ready returns a channel that is closed once the instance waits, or handles, at every partition.
func (c *Consumer) Ready() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ready
}

func (c *Consumer) unready() {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.ready:
		c.ready = make(chan struct{})
	default:
	}
}

// Pause makes the instance take nothing new and leave its partitions to the others, once the messages in hand are done with. It
// does not wait. Before Run it holds from the beginning, and Ready then waits for Resume.
func (c *Consumer) Pause() { c.setPaused(true) }

// Resume ends a Pause.
func (c *Consumer) Resume() { c.setPaused(false) }

func (c *Consumer) setPaused(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.paused == on {
		return
	}
	c.paused = on
	close(c.changed)
	c.changed = make(chan struct{})
	for _, part := range c.parts {
		part.setPaused(on)
	}
}

func (c *Consumer) pause() (on bool, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.paused, c.changed
}

// Counts returns how many messages this Consumer has handled successfully, by partition. Where one count runs away, a few keys
// have most of the messages: that is the limit of this pattern, since a key is never split.
func (c *Consumer) Counts() []int64 {
	counts := make([]int64, len(c.parts))
	for i, part := range c.parts {
		counts[i] = int64(part.loop.Stats().Handled)
	}
	return counts
}
