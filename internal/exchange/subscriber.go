package exchange

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/consume"
	"github.com/warrenmq/warren/internal/prefix"
	"github.com/warrenmq/warren/reconnect"
)

// Handler handles one message.
type Handler = func(ctx context.Context, d amqp.Delivery) error

// SubscriberConfig says how a Subscriber consumes.
type SubscriberConfig struct {
	Concurrency, Prefetch           int
	HandlerTimeout, ShutdownTimeout time.Duration
	OnGap                           func(from, to time.Time) // live only
	OnOverflow                      func()                   // live only
}

// defaultPrefetch lets small messages flow. The loop begins with one and doubles.
const defaultPrefetch = 100

// Subscriber handles the messages of one subscription.
type Subscriber struct {
	name    string // in errors
	loop    *consume.Loop
	live    *live // nil: durable
	running atomic.Bool
}

// NewSubscriber returns a Subscriber of a durable subscription. It does no I/O, and returns every fault at once.
func NewSubscriber(conn *reconnect.Conn, pkg string, s Subscription, h Handler, cfg SubscriberConfig) (*Subscriber, error) {
	faults := s.validate(false, commonMode(conn))
	if cfg.OnGap != nil {
		faults = errors.Join(faults, errors.New("OnGap: only for a live subscriber; a durable subscription has no gaps"))
	}
	if cfg.OnOverflow != nil {
		faults = errors.Join(faults, errors.New("OnOverflow: only for a live subscriber; a durable subscription's queue refuses instead"))
	}
	name := fmt.Sprintf("%s: subscriber of queue %q", pkg, s.Queue)
	loop, err := newLoop(conn, s, s.Queue, h, cfg, faults, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &Subscriber{name: name, loop: loop}, nil
}

// NewLiveSubscriber returns a Subscriber of a live subscription. It does no I/O, and returns every fault at once.
func NewLiveSubscriber(conn *reconnect.Conn, pkg string, s Subscription, h Handler, cfg SubscriberConfig) (*Subscriber, error) {
	name, l := fmt.Sprintf("%s: live subscriber of %s", pkg, named(s.Exchange.Name)), newLive(conn, s, cfg)
	loop, err := newLoop(conn, s, s.livePrefix(), h, cfg, s.validate(true, commonMode(conn)), l)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	l.held = int64(loop.Config().Concurrency) * int64(loop.Config().Prefetch)
	return &Subscriber{name: name, loop: loop, live: l}, nil
}

func newLoop(conn *reconnect.Conn, s Subscription, name string, h Handler, cfg SubscriberConfig, faults error, l *live) (*consume.Loop, error) {
	if conn == nil {
		return nil, errors.New("conn: nil")
	}
	if cfg.Prefetch == 0 {
		cfg.Prefetch = defaultPrefetch
	}
	common, topology := conn.Config(), s.Topology()
	c := consume.Config{
		Name: cmp.Or(name, "unnamed"), Queue: cmp.Or(name, "unnamed"), Handler: h, // that it has none is a fault of s
		Concurrency: cfg.Concurrency, Prefetch: cfg.Prefetch, SlowStart: true, Quorum: l == nil,
		HandlerTimeout: cfg.HandlerTimeout, ShutdownTimeout: cfg.ShutdownTimeout,
		AbandonAfter: common.AbandonAfter, ConsumerTimeout: common.ConsumerTimeout, MaxBody: common.MaxBody,
		Supervise: func(ctx context.Context, name string, fn func(context.Context, *amqp.Channel) error) error {
			return conn.Supervise(ctx, name, topology, fn)
		},
		Logger:         common.Logger,
		TracerProvider: common.TracerProvider, MeterProvider: common.MeterProvider, Propagator: common.Propagator,
	}
	if l != nil {
		c.Open, c.Watch = l.open, l.watch
	}
	loop, loopFaults := consume.New(c)
	return loop, errors.Join(faults, loopFaults)
}

// Run consumes until ctx ends, see consume.Loop.Run.
func (s *Subscriber) Run(ctx context.Context) error {
	if !s.running.CompareAndSwap(false, true) {
		return fmt.Errorf("%s is running already", s.name)
	}
	defer s.running.Store(false)
	if s.live != nil {
		defer s.live.leave(ctx)
	}
	return prefix.Wrap(s.name, s.loop.Run(ctx))
}

// Ready returns a channel that is closed once everything is bound and every handler's channel consumes.
func (s *Subscriber) Ready() <-chan struct{} { return s.loop.Ready() }

// Pause makes the Subscriber take nothing new. It does not wait.
func (s *Subscriber) Pause() { s.loop.Pause() }

// Resume ends a Pause.
func (s *Subscriber) Resume() { s.loop.Resume() }
