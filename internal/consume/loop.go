package consume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/report"
	"github.com/warrenmq/warren/internal/telemetry"
)

// Loop consumes one queue with several workers. It is made by New, and runs while Run does.
type Loop struct {
	cfg     Config
	log     *slog.Logger
	mark    mark
	gate    *gate
	limiter *limiter
	pause   *pause
	active  *tally // consumers of this loop at the broker
	orphans *tally // handlers that outlived their channel
	unsure  *tally // generations that may yet take a message for a proof
	running atomic.Bool
	counters
	hands hands

	mu    sync.Mutex // guards what follows
	ready chan struct{}
	seen  []bool // workers that have consumed since Run began
}

// New returns a Loop, or everything that is wrong with cfg, each fault beginning with the field's name.
func New(cfg Config) (*Loop, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	log := cfg.Logger.With("queue", cfg.Queue)
	t := telemetry.New(telemetry.Config{TracerProvider: cfg.TracerProvider, MeterProvider: cfg.MeterProvider, Propagator: cfg.Propagator, Logger: log})
	return &Loop{
		counters: counters{tell: t.Consumer(cfg.Queue)},

		cfg:     cfg,
		log:     log,
		mark:    mark{queue: cfg.Queue, ordered: cfg.Ordered},
		gate:    newGate(),
		limiter: newLimiter(cfg.PerSecond),
		pause:   newPause(),
		active:  newTally(),
		orphans: newTally(),
		unsure:  newTally(),
		hands:   hands{log: log},
		ready:   make(chan struct{}),
	}, nil
}

// Config returns the configuration in force, defaults filled in.
func (l *Loop) Config() Config { return l.cfg }

// Abandoned is the error of a Run that ended while handlers were still running: they ignored the end of their context.
type Abandoned struct {
	Name  string // of the worker
	Count int    // handlers still running
}

func (e *Abandoned) Error() string {
	return fmt.Sprintf("%q stopped with %d handlers still running: they ignore their context, their messages come again", e.Name, e.Count)
}

// Run consumes until ctx ends. Then it takes nothing new, lets started handlers finish within the grace period, settles, hands
// back the rest and returns nil; or an *Abandoned, if handlers were left running; or an error when a channel could not be closed
// in time, since what was finished on it may then come again. An error that Supervise returns for one worker stops the others in the
// same way and is returned. Run may be called again after it returned, not before.
func (l *Loop) Run(ctx context.Context) error {
	if !l.running.CompareAndSwap(false, true) {
		return fmt.Errorf("%q is running already", l.cfg.Name)
	}
	defer l.running.Store(false)
	l.mu.Lock()
	l.seen = make([]bool, l.cfg.Concurrency)
	l.mu.Unlock()
	defer l.unready()

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var stopped atomic.Pointer[time.Time]
	defer context.AfterFunc(ctx, func() { now := time.Now(); stopped.Store(&now) })()

	workers := make([]*worker, l.cfg.Concurrency)
	errs := make(chan error, len(workers))
	for i := range workers {
		workers[i] = &worker{loop: l, index: i, name: l.workerName(i), orphans: newTally()}
		go func() {
			err := l.cfg.Supervise(ctx, workers[i].name, workers[i].run)
			if err != nil {
				stop()
			}
			errs <- err
		}()
	}
	first := l.gather(errs, len(workers))
	return errors.Join(first, l.unproven(workers), l.waitOrphans(stopped.Load()))
}

// gather returns the first error of n: the one that stopped the others.
func (l *Loop) gather(errs <-chan error, n int) (first error) {
	for range n {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return first
}

func (l *Loop) unproven(workers []*worker) error {
	var errs []error
	for _, w := range workers {
		errs = append(errs, w.unproven)
	}
	return errors.Join(errs...)
}

// waitOrphans gives handlers that outlived their channels the time that is left, and counts those that did not take it.
func (l *Loop) waitOrphans(stopped *time.Time) error {
	limit := l.cfg.AbandonAfter
	if stopped != nil && l.cfg.AbandonAfter >= 0 && l.cfg.ShutdownTimeout >= 0 {
		limit = min(limit, l.cfg.ShutdownTimeout+l.cfg.AbandonAfter-time.Since(*stopped))
	}
	var late <-chan time.Time
	if l.cfg.AbandonAfter >= 0 {
		t := time.NewTimer(limit)
		defer t.Stop()
		late = t.C
	}
	if n, ok := l.orphans.atMost(0, nil, late); !ok {
		return &Abandoned{Name: l.cfg.Name, Count: n}
	}
	return nil
}

func (l *Loop) workerName(i int) string {
	if l.cfg.Concurrency == 1 {
		return l.cfg.Name
	}
	return fmt.Sprintf("%s/%d", l.cfg.Name, i+1)
}

// Ready returns a channel that is closed once every worker consumes. After a Run that got so far has ended, Ready returns a
// new one, for the next Run.
func (l *Loop) Ready() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ready
}

// consumes notes that worker i has a consumer at the broker.
func (l *Loop) consumes(i int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen[i] {
		return
	}
	l.seen[i] = true
	for _, seen := range l.seen {
		if !seen {
			return
		}
	}
	close(l.ready)
}

func (l *Loop) unready() {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.ready:
		l.ready = make(chan struct{})
	default:
	}
}

// Pause has the workers take nothing new: they cancel their consumers and hand back what they have not started, and what waits with a "not
// now"; handlers that run go on. It does not wait for this, may be called before Run, and holds for later Runs too.
func (l *Loop) Pause() { l.pause.set(true) }

// Resume ends Pause.
func (l *Loop) Resume() { l.pause.set(false) }

// Stats returns the counts so far.
func (l *Loop) Stats() Stats {
	return Stats{
		Handled: l.handled.Load(), Failed: l.failed.Load(), Panics: l.panics.Load(), NotNow: l.notNow.Load(),
		Returned: l.returned.Load(), Stale: l.stale.Load(), HandSettle: l.hands.n.Load(),
	}
}

// worker is one of a loop's workers: a channel, and after its loss another.
type worker struct {
	loop     *Loop
	index    int
	name     string
	orphans  *tally // this worker's handlers on lost channels
	unproven error  // written by run, read after Supervise returned
}

// run is what Supervise calls with each fresh channel.
func (w *worker) run(ctx context.Context, ch *amqp.Channel) error {
	if err := w.waitOrphans(ctx); err != nil {
		return err
	}
	if !report.Consumes(ctx, w.loop.cfg.Queue) {
		return nil
	}
	err := newGeneration(w, ch, w.loop.configFor(ctx)).live(ctx)
	var lost *amqp.Error
	if ctx.Err() != nil && !errors.As(err, &lost) {
		return nil // stopped: what went wrong with that is the loop's to tell
	}
	return err
}

// configFor is the configuration with which a channel is used: one message at a time when each may cost the connection.
func (l *Loop) configFor(ctx context.Context) *Config {
	if !report.Careful(ctx) {
		return &l.cfg
	}
	careful := l.cfg
	careful.Prefetch = 1
	return &careful
}
