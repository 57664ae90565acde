package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/consume"
	"github.com/warrenmq/warren/internal/prefix"
	"github.com/warrenmq/warren/internal/wire"
	"github.com/warrenmq/warren/reconnect"
)

// Handler answers one request. What it returns is sent to the caller: of the Publishing the body, the headers and the
// properties but CorrelationId. An error goes to the caller as a *RemoteError, as does a panic; its text is for the
// caller's eyes, so a handler that must not tell returns a *RemoteError of its own. An error with a method NotNow() bool
// that returns true says that nothing was done: the handler is called again after a pause, until the deadline.
//
// ctx has the caller's deadline. It ends before that when the caller cancels the call and its client says so
// (ClientConfig.NotifyCancel), when the grace period of a shutdown is over, and, with the reason as its cause, when the
// request's channel was lost. The broker then gives the request to another server, which executes it if it is idempotent,
// and otherwise tells the caller that its outcome is unknown; an answer that the handler returns all the same is sent.
//
// A wrapper of a Handler is a Handler: that is where middleware goes, and a store that replays the answers of requests which
// come again (package idempotency has one). The Ack, Nack and Reject of the delivery do nothing and return an error.
type Handler = func(ctx context.Context, d amqp.Delivery) (amqp.Publishing, error)

// Server answers the requests of one queue. Any number of Servers, in any number of processes, may share a queue; each
// request goes to one of them.
type Server struct {
	queue   string
	cfg     ServerConfig
	handler Handler
	loop    *consume.Loop
	limits  wire.Limits
	log     *slog.Logger
	cancels *cancels
	nodes   *nodes
	young   young

	direct *reconnect.Publisher // of answers to direct reply-to, which the broker calls unroutable, or not, as it likes
	queues *reconnect.Publisher // of answers to queues
	// copies is of requests that are handed back. It sends nothing twice: a second copy might be executed, too.
	copies *reconnect.Publisher

	expired, unanswered atomic.Int64
}

// NewServer returns a Server that answers the requests in queue with h. It does no I/O. It returns every fault of queue and
// cfg at once, each naming its field.
func NewServer(conn *reconnect.Conn, queue string, h Handler, cfg ServerConfig) (*Server, error) {
	if conn == nil {
		return nil, errors.New("rpc: server: conn: nil")
	}
	cfg = cfg.withDefaults()
	common := conn.Config()
	s := &Server{queue: queue, cfg: cfg, handler: h, limits: wire.Limits{MaxBody: common.MaxBody},
		log: common.Logger.With("queue", queue), cancels: newCancels(conn, queue), nodes: newNodes()}
	var noHandler, err, loopFaults error
	if h == nil {
		noHandler = errors.New("h: nil")
	}
	if s.direct, err = conn.NewPublisher(reconnect.PublisherConfig{Transient: true, AllowUnroutable: true, Shared: true}); err != nil {
		return nil, err
	}
	if s.queues, err = conn.NewPublisher(reconnect.PublisherConfig{Transient: true, Shared: true}); err != nil {
		return nil, err
	}
	if s.copies, err = conn.NewPublisher(reconnect.PublisherConfig{Transient: true, FailFast: true, Shared: true}); err != nil {
		return nil, err
	}
	topology := cfg.Topology(queue)
	s.loop, loopFaults = consume.New(consume.Config{
		Name: cmp.Or(queue, "unnamed"), Queue: cmp.Or(queue, "unnamed"), // that it has none is told once
		Concurrency: cfg.Concurrency, Prefetch: min(max(1, cfg.Prefetch), maxPrefetch), // as is what is wrong with that
		HandlerTimeout: cfg.handlerTimeout(common.ConsumerTimeout), ShutdownTimeout: cfg.ShutdownTimeout,
		AbandonAfter: common.AbandonAfter, ConsumerTimeout: common.ConsumerTimeout,
		Supervise: func(ctx context.Context, name string, fn func(context.Context, *amqp.Channel) error) error {
			return conn.Supervise(ctx, name, topology, func(ctx context.Context, ch *amqp.Channel) error {
				defer s.young.join()()
				return fn(ctx, ch)
			})
		},
		Handler: s.handle, Requeue: s.requeue, Stamp: true,
		Logger:         common.Logger,
		TracerProvider: common.TracerProvider, MeterProvider: common.MeterProvider, Propagator: common.Propagator,
	})
	if err := errors.Join(cfg.validate(queue), noHandler, loopFaults); err != nil {
		return nil, fmt.Errorf("rpc: server of queue %q: %w", queue, err)
	}
	return s, nil
}

const maxPrefetch = 65535

// Run serves until ctx ends, through every loss of its channels and connections. Then it takes nothing new, lets started
// handlers finish and be answered for up to ShutdownTimeout, hands back what was not started for other servers, and returns
// nil, or an error that counts the handlers it had to abandon. It returns earlier only for what cannot be mended: a
// *reconnect.TopologyError, or reconnect.ErrClosed. It may be called again afterwards, but not twice at once.
func (s *Server) Run(ctx context.Context) error {
	stop := s.cancels.open(context.WithoutCancel(ctx))
	defer stop()
	if err := s.loop.Run(ctx); err != nil {
		return prefix.Wrap(fmt.Sprintf("rpc: server of queue %q", s.queue), err)
	}
	return nil
}

// Ready returns a channel that is closed once every handler's channel has consumed for the first time. It is not closed
// when Run ends before that: wait for either.
func (s *Server) Ready() <-chan struct{} { return s.loop.Ready() }

// Pause makes the Server take nothing new; what it has not started goes back to the queue. It does not wait.
func (s *Server) Pause() { s.loop.Pause() }

// Resume ends a Pause.
func (s *Server) Resume() { s.loop.Resume() }

// Expired returns how many requests were not executed because their time was over when they came.
func (s *Server) Expired() int64 { return s.expired.Load() }

// Unanswered returns how many requests could not be answered: they named no queue for it, one that is not allowed, or one
// that was gone. Of these only the last were executed.
func (s *Server) Unanswered() int64 { return s.unanswered.Load() }
