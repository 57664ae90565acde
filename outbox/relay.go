package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warrenmq/warren/internal/pg"
	"github.com/warrenmq/warren/reconnect"
)

// Publisher is what a Relay sends with: a *reconnect.Publisher, or a few lines around the publisher of another broker.
//
// PublishBatch publishes msgs in their order and returns nil when all of them are safe. Otherwise it returns a
// reconnect.BatchError with one entry for each message, nil for one that is safe. What the relay does with an entry:
//
//   - Permanent() bool, returning true: the message is parked.
//   - reconnect.ErrUnknown, ErrBlocked, ErrBusy, ErrClosed, or the error of a context: nothing is wrong with the message. It
//     is sent again, before any later one, and that costs it no attempt. Entries behind such a one that say nothing the relay
//     knows are taken for messages that were not sent.
//   - any other: it costs the message an attempt, and the messages behind it go on. RetryAfter() time.Duration says when the
//     next is due.
//
// Any other error is about the batch as a whole, as when there is no connection: no message of it is known to be safe, and
// none is charged with an attempt. A panic is such an error, too, but costs a message that was alone in its batch an attempt.
//
// The relay calls PublishBatch from one goroutine for each lane. When it stops it lets the call that is going on end, and
// ends its ctx after ShutdownTimeout; Run waits for it to return. A *reconnect.Publisher, which is told, ends its call as soon
// as nothing is left that could be confirmed, also behind the publisher of a pattern or whatever else passes the ctx on.
//
// A Publisher may have a method Closing() <-chan struct{}, as those of packages reconnect, direct, topic and consistenthash do,
// and what embeds one of these, but not what embeds this interface: Run, which asks once for the channel and must not have to
// wait for it, ends with reconnect.ErrClosed when it is closed. Without it, or with a nil channel, a relay notices with the next
// message that its publisher is closed.
type Publisher interface {
	PublishBatch(ctx context.Context, msgs []reconnect.Message) error
}

// RelayConfig says how a Relay sends. The zero value is complete.
type RelayConfig struct {
	// Batch is how many rows of a lane are out at most, 1 to 2000: being sent, or confirmed and not yet deleted. It is also the
	// most that is sent twice when a relay dies, with equal message ids. While one part of them is deleted another one is
	// sent. The publisher's Window should not be smaller. Default 1000.
	Batch int

	// MaxAttempts is after how many failed attempts a row is parked: kept aside, with the reason, until somebody requeues or
	// discards it. An outage costs none. Default 10; -1: never parked for that.
	MaxAttempts int

	// BackoffMin and BackoffMax are the delay before a failed row's second attempt, and the longest: it doubles with each, a
	// random half to the whole of it is taken. Rows behind it do not wait. Defaults 1 s, 5 min.
	BackoffMin, BackoffMax time.Duration

	// PollInterval is how often an idle relay looks for rows that nothing woke it for, and a standby whether it is to lead:
	// what a commit without Wake, or one whose wake-up was lost, waits at most. Default 1 s.
	PollInterval time.Duration

	// ShutdownTimeout is how long, after Run's context has ended, the relay waits for the confirmations of what it has sent
	// and deletes it. It waits no longer than they can come: what was sent on a connection that is gone is not waited for, nor
	// are a link, the end of an alarm or a turn to be sent; a broker that is connected and says nothing may take all of it.
	// Default 30 s; -1 for as long as it takes.
	ShutdownTimeout time.Duration

	// Lease makes relays elect the leader of a lane by a row that is good for so long, instead of by a session's lock: for
	// a pooler that gives each transaction another session (PgBouncer's pool_mode transaction). When a leader dies the next
	// one waits for its lease to end. Relays hear of commits in other processes by polling only, and the database's
	// bytea_output must be hex and its DateStyle ISO, as they are by default. At least 1 s; all relays of an outbox must
	// agree on whether there is one. Default: session locks.
	Lease time.Duration
}

// chunk is how many rows are fetched, and sent, together: so that one half of a Batch is sent while the other is deleted.
func (cfg RelayConfig) chunk() int { return (cfg.Batch + 1) / 2 }

// Defaults of a RelayConfig.
const (
	defaultBatch           = 1000
	defaultMaxAttempts     = 10
	defaultBackoffMin      = time.Second
	defaultBackoffMax      = 5 * time.Minute
	defaultPollInterval    = time.Second
	defaultShutdownTimeout = 30 * time.Second

	maxBatch = 2000
	minLease = time.Second
)

func (cfg RelayConfig) validate() error {
	var faults []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	fault(cfg.Batch < 0 || cfg.Batch > maxBatch, "Batch: %d, must be between 1 and %d", cfg.Batch, maxBatch)
	fault(cfg.MaxAttempts < -1, "MaxAttempts: %d, must be positive, or -1 for no limit", cfg.MaxAttempts)
	fault(cfg.BackoffMin < 0, "BackoffMin: %v, must be positive", cfg.BackoffMin)
	fault(cfg.BackoffMax < 0, "BackoffMax: %v, must be positive", cfg.BackoffMax)
	fault(cfg.BackoffMax > 0 && cfg.BackoffMax < cfg.BackoffMin, "BackoffMax: %v, less than BackoffMin, %v", cfg.BackoffMax, cfg.BackoffMin)
	fault(cfg.PollInterval < 0, "PollInterval: %v, must be positive", cfg.PollInterval)
	fault(cfg.ShutdownTimeout < -1, "ShutdownTimeout: %v, must be positive, or -1 for no limit", cfg.ShutdownTimeout)
	fault(cfg.Lease != 0 && cfg.Lease < minLease, "Lease: %v, must be at least %v", cfg.Lease, minLease)
	return errors.Join(faults...)
}

func (cfg RelayConfig) withDefaults() RelayConfig {
	orInt := func(n *int, or int) {
		if *n == 0 {
			*n = or
		}
	}
	orTime := func(d *time.Duration, or time.Duration) {
		if *d == 0 {
			*d = or
		}
	}
	orInt(&cfg.Batch, defaultBatch)
	orInt(&cfg.MaxAttempts, defaultMaxAttempts)
	orTime(&cfg.BackoffMin, defaultBackoffMin)
	orTime(&cfg.BackoffMax, max(defaultBackoffMax, cfg.BackoffMin))
	orTime(&cfg.PollInterval, defaultPollInterval)
	orTime(&cfg.ShutdownTimeout, defaultShutdownTimeout)
	return cfg
}

// Relay sends what is in an outbox. Any number of them may run, in any number of processes: for each lane one leads and the
// others stand by, with one connection each, and take over within PollInterval when it dies.
//
// A leader has two connections to the database for each lane, made with the settings of the Outbox's pool but not taken
// from it. On one it holds the lock by which it leads and reads rows in the order of their ids, on the other it deletes what
// was confirmed. It publishes outside any transaction: while the broker is away or blocks publishers it holds no
// transaction, no snapshot and no row lock, and asks the database nothing but whether it still leads.
type Relay struct {
	outbox  *Outbox
	pub     Publisher
	cfg     RelayConfig
	log     *slog.Logger
	metrics *relayMetrics
	running atomic.Bool

	mu       sync.Mutex
	led      int     // lanes of the configuration that this relay leads
	presence *wakeup // says when that is all of them
}

// NewRelay returns a Relay that sends what is in o with pub. pub should be a publisher of its own, with a Window of at least
// Batch and without FailFast. It does no I/O, and returns every fault at once.
func NewRelay(o *Outbox, pub Publisher, cfg RelayConfig) (*Relay, error) {
	var faults []error
	switch {
	case o == nil:
		faults = append(faults, errors.New("outbox: nil"))
	case o.pool == nil:
		faults = append(faults, errNoPool)
	}
	if pub == nil {
		faults = append(faults, errors.New("publisher: nil"))
	}
	if err := errors.Join(append(faults, cfg.validate())...); err != nil {
		return nil, fmt.Errorf("outbox: relay: %w", err)
	}
	metrics, err := newRelayMetrics(o)
	if err != nil {
		return nil, fmt.Errorf("outbox: relay: %w", err)
	}
	return &Relay{outbox: o, pub: pub, cfg: cfg.withDefaults(), log: o.cfg.Logger, metrics: metrics}, nil
}

// Run relays until ctx ends, through every loss of the database and of the broker. Then it fetches and sends nothing more,
// waits for the confirmations of what it has sent, for up to ShutdownTimeout but only while they can still come, deletes that,
// gives up the lead, and returns nil, or an error that counts the messages that will be sent again because they were not
// confirmed or not deleted in time. What it has fetched and not sent stays. It returns earlier only, after the same, when its
// publisher is closed, with reconnect.ErrClosed: at once, whatever it does then, when the publisher has Closing, see Publisher. It
// may be called again afterwards, but not twice at once.
//
// A database that is away, or has no tables yet, is asked again with backoff.
func (r *Relay) Run(ctx context.Context) error {
	if !r.running.CompareAndSwap(false, true) {
		return errors.New("outbox: the relay is running already")
	}
	defer r.running.Store(false)
	unobserve, err := r.metrics.observe()
	if err != nil {
		return fmt.Errorf("outbox: relay: %w", err)
	}
	defer unobserve()
	r.presence = r.outbox.wake.subscribe()
	defer r.presence.close()
	if err := r.runLanes(ctx); err != nil {
		return fmt.Errorf("outbox: relay: %w", err)
	}
	return nil
}

// runLanes runs all lanes until ctx ends, or until nothing can ever be sent again: then they stop as they do with ctx.
func (r *Relay) runLanes(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	quit := func(err error) { cancel(closed{err}) }
	var all sync.WaitGroup
	if p, ok := r.pub.(interface{ Closing() <-chan struct{} }); ok {
		closing := p.Closing()
		all.Go(func() {
			select {
			case <-closing:
				quit(reconnect.ErrClosed)
			case <-ctx.Done():
			}
		})
	}
	var mu sync.Mutex
	var faults []error
	started := map[int]bool{}
	start := func(n int) {
		if started[n] {
			return
		}
		started[n] = true
		all.Go(func() {
			if err := newLane(r, n, quit).run(ctx); err != nil {
				mu.Lock()
				defer mu.Unlock()
				faults = append(faults, err)
			}
		})
	}
	for n := range r.outbox.cfg.Lanes {
		start(n)
	}
	r.findLanes(ctx, start)
	all.Wait()
	if why := (closed{}); errors.As(context.Cause(ctx), &why) {
		faults = append([]error{why.error}, faults...)
	}
	return errors.Join(faults...)
}

// closed is the end of Run's context because the publisher is closed.
type closed struct{ error }

// leads notes that this relay leads a lane, or no longer does. When it leads all, nobody else has to be woken.
func (r *Relay) leads(l *lane, now bool) {
	l.figures.leads.Store(now)
	if l.n >= r.outbox.cfg.Lanes {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if now {
		r.led++
	} else {
		r.led--
	}
	r.presence.alone.Store(r.led == r.outbox.cfg.Lanes)
}

// findLanes starts the lanes that there are tables of beyond those of the configuration: what programs with more lanes
// have enqueued has to leave as well. It returns when ctx ends.
func (r *Relay) findLanes(ctx context.Context, start func(lane int)) {
	for {
		wait := laneInterval
		lanes, err := r.lanes(ctx)
		switch {
		case pg.Code(err) == insufficientPrivilege:
			r.log.Warn("outbox: may not see whether there are more lanes than it is configured for", "table", r.outbox.cfg.Table, "error", err)
		case err != nil:
			wait = r.cfg.PollInterval // the lanes themselves say what is wrong
		}
		for _, n := range lanes {
			start(n)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

const laneInterval = time.Minute

func (r *Relay) lanes(ctx context.Context) ([]int, error) {
	ctx, cancel := context.WithTimeout(ctx, quickTimeout)
	defer cancel()
	conn, err := r.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer hangUp(conn)
	return r.outbox.tables.lanes(ctx, conn)
}
