package reconnect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/backoff"
	"github.com/warrenmq/warren/internal/report"
)

const (
	phaseStarting = report.Starting
	phaseWaiting  = report.Waiting
)

// Supervise declares t and runs fn with a channel of its own on the consuming link, and again with a fresh channel, at
// once and then with backoff, whenever that channel was lost: closed by either side, gone with its connection, or a
// consumer on it cancelled by the broker. name identifies it in State and in the log.
//
// It blocks, and returns nil once ctx has ended and fn has returned; what fn returned while its channel was whole; an
// error of fn that is permanent (has Permanent() bool returning true); a *TopologyError of t; ErrClosed when the Conn is
// closed. A passive entity of t that is missing (404) and an exclusive queue that another connection still holds (405)
// are asked for again with backoff. A panic of fn is recovered and is an error.
//
// fn's context ends with ctx, with the Conn's closing, or when its channel is lost, which is then its cause. fn must not
// use the channel from two goroutines at once for calls that wait for an answer (declare, consume, qos); it may leave the
// channel open.
func (c *Conn) Supervise(ctx context.Context, name string, t Topology, fn func(ctx context.Context, ch *amqp.Channel) error) error {
	return c.supervise(ctx, c.consuming, name, t, fn)
}

// SupervisePublishing is Supervise on the publishing link, for a fn that publishes by hand. There the broker stops
// reading during a resource alarm, acknowledgements included.
func (c *Conn) SupervisePublishing(ctx context.Context, name string, t Topology, fn func(ctx context.Context, ch *amqp.Channel) error) error {
	return c.supervise(ctx, c.publishing, name, t, fn)
}

func (c *Conn) supervise(ctx context.Context, l *link, name string, t Topology, fn func(context.Context, *amqp.Channel) error) error {
	if err := errors.Join(notEmpty("name", name), notNil("fn", fn == nil)); err != nil {
		return fmt.Errorf("reconnect: supervise: %w", err)
	}
	items, err := c.admit(t)
	if err != nil {
		return fmt.Errorf("reconnect: supervise %q: %w", name, err)
	}
	if l.role == publishingLink && hasExclusive(items) {
		return fmt.Errorf("reconnect: supervise %q: exclusive queues belong on the consuming link", name)
	}
	if !c.workers.enter() {
		return ErrClosed
	}
	defer c.workers.leave()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.life, func() { cancel(ErrClosed) })()
	w := &supervised{conn: c, link: l, name: name, items: items, fn: fn, log: l.log.With("worker", name)}
	defer c.board.remove(w)
	err = w.run(ctx)
	if err == nil && context.Cause(ctx) == ErrClosed {
		return ErrClosed
	}
	return err
}

func notNil(what string, isNil bool) error {
	if isNil {
		return fmt.Errorf("%s: nil", what)
	}
	return nil
}

// supervised is one running Supervise.
type supervised struct {
	conn  *Conn
	link  *link
	name  string
	items []item
	fn    func(context.Context, *amqp.Channel) error
	log   *slog.Logger
}

// errLost marks an end after which fn is run again.
type errLost struct{ why error }

func (e errLost) Error() string { return e.why.Error() }

// run runs fn until there is a reason to stop.
func (w *supervised) run(ctx context.Context) error {
	pause := backoff.NewCounter(backoff.Policy{Min: w.conn.cfg.BackoffMin, Max: w.conn.cfg.BackoffMax})
	var last *session
	var why error
	for {
		delay := pause.Next()
		w.state(State{Phase: phaseStarting, Attempts: pause.Attempts(), NextTry: time.Now().Add(delay), Reason: text(why)})
		if backoff.Sleep(ctx, delay) != nil {
			return nil
		}
		s, err := w.link.session(ctx, false)
		if err != nil {
			return unlessEnded(ctx, err)
		}
		began := time.Now()
		err = w.once(ctx, s, s == last)
		last = s
		var lost errLost
		switch {
		case !errors.As(err, &lost):
			return unlessEnded(ctx, err)
		case ctx.Err() != nil:
			return nil
		}
		why = lost.why
		pause.Lost(time.Since(began))
		w.log.Warn("running again", "error", why)
	}
}

// unlessEnded returns err, but nil when it only says that ctx has ended.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx))) {
		return nil
	}
	return err
}

// once declares what fn needs and runs it on one channel. again says that fn has run on this session before: then
// somebody may have deleted what was declared on it.
func (w *supervised) once(ctx context.Context, s *session, again bool) error {
	if err := w.declare(ctx, s, again); err != nil {
		return err
	}
	ch, err := s.channel(ctx)
	if err != nil {
		return errLost{err}
	}
	return w.call(ctx, s, ch)
}

func (w *supervised) declare(ctx context.Context, s *session, again bool) error {
	declare := s.declared.missing
	if again {
		declare = s.declared.all
	}
	faults := declare(ctx, w.items)
	for _, err := range faults {
		if isPermanent(err) {
			return errors.Join(faults...)
		}
	}
	if len(faults) > 0 {
		return errLost{errors.Join(faults...)}
	}
	w.conn.registry.remember(w.items)
	return nil
}

// call runs fn on ch and says how that ended.
func (w *supervised) call(ctx context.Context, s *session, ch *amqp.Channel) error {
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	cancelled := ch.NotifyCancel(make(chan string, 8))
	fnCtx, end := context.WithCancelCause(ctx)
	lost := make(chan error, 1)
	watching := make(chan struct{})
	go func() { // ends with the channel, which is closed below if it is not by then
		defer close(watching)
		if err, ok := <-closed; ok {
			lost <- err
			end(fmt.Errorf("channel lost: %w", err))
		}
	}()
	var byBroker atomic.Bool
	cancels := make(chan struct{})
	go func() {
		defer close(cancels)
		for range cancelled {
			byBroker.Store(true)
		}
	}()
	w.state(State{Phase: report.Running})
	err := w.protect(report.With(fnCtx, w.report), ch)
	whole := !ch.IsClosed() && s.alive()
	if whole {
		w.closeChannel(ctx, s, ch)
	}
	<-watching
	<-cancels
	end(nil)
	switch {
	case isPermanent(err):
		return err
	case !whole:
		return errLost{channelLost(lost, s, err)}
	case byBroker.Load():
		return errLost{errors.New("a consumer was cancelled by the broker: its queue was deleted or moved")}
	}
	return err
}

// channelLost is the most telling reason for the loss.
func channelLost(lost <-chan error, s *session, err error) error {
	select {
	case why := <-lost:
		return fmt.Errorf("channel lost: %w", why)
	default:
	}
	if !s.alive() {
		return fmt.Errorf("connection lost: %w", s.lossOr(amqp.ErrClosed))
	}
	if err != nil {
		return fmt.Errorf("channel closed: %w", err)
	}
	return errors.New("channel closed by the function that ran on it")
}

// closeChannelWithin bounds the wait for the broker's answer to a channel's close.
const closeChannelWithin = 5 * time.Second

// closeChannel closes ch; when the broker does not answer, it drops the connection, which can only be dead: otherwise the
// deliveries of the old channel would stay assigned to it.
func (w *supervised) closeChannel(ctx context.Context, s *session, ch *amqp.Channel) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeChannelWithin)
	defer cancel()
	if err := s.do(ctx, func(context.Context) error { return ch.Close() }); errors.Is(err, context.DeadlineExceeded) {
		s.sock.Kill()
	}
}

// protect runs fn and turns a panic into an error.
func (w *supervised) protect(ctx context.Context, ch *amqp.Channel) (err error) {
	defer func() {
		if p := recover(); p != nil {
			w.log.Error("panic in a supervised function", "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("reconnect: supervise %q: panic: %v", w.name, p)
		}
	}()
	return w.fn(ctx, ch)
}

func (w *supervised) report(phase, reason string) {
	w.state(State{Phase: phase, Reason: reason})
}

func (w *supervised) state(s State) {
	s.Name = w.name
	w.conn.board.put(w, s)
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
