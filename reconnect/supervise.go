package reconnect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/backoff"
	"github.com/warrenmq/warren/internal/report"
)

const phaseStarting = report.Starting

// Supervise declares t and runs fn with a channel of its own on the consuming link, and again with a fresh channel, at
// once and then with backoff, whenever that channel was lost: closed by either side, gone with its connection, or a
// consumer on it cancelled by the broker. name identifies it in State and in the log.
//
// It blocks, and returns nil once ctx has ended and fn has returned without an error of its own; what fn returned while
// its channel was whole; an error of fn that is permanent (has Permanent() bool returning true); a *TopologyError of t;
// ErrClosed when the Conn is closed. A passive entity of t that is missing (404) and an exclusive queue that another
// connection still holds (405) are asked for again with backoff. A panic of fn is recovered and is an error.
//
// What is declared is remembered as by Declare; exclusive queues that only t names, until Supervise returns.
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
	items, err := c.admitWorker(l, name, t, fn == nil)
	if err != nil {
		return fmt.Errorf("reconnect: supervise %q: %w", name, err)
	}
	if !c.workers.enter() {
		return ErrClosed
	}
	defer c.workers.leave()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.life, func() { cancel(ErrClosed) })()
	w := &supervised{conn: c, link: l, name: name, items: items, fn: fn, log: l.log.With("worker", name)}
	c.board.add(w, State{Name: name, Phase: phaseStarting})
	defer c.board.remove(w)
	defer w.forget()
	err = w.run(ctx)
	if err == nil && context.Cause(ctx) == ErrClosed {
		return ErrClosed
	}
	return err
}

func (c *Conn) admitWorker(l *link, name string, t Topology, noFunction bool) ([]item, error) {
	items, err := c.admit(t)
	faults := []error{notEmpty("name", name), err}
	if noFunction {
		faults = append(faults, errors.New("fn: nil"))
	}
	if l.role == publishingLink && hasExclusive(items) {
		faults = append(faults, errors.New("topology: exclusive queues belong on the consuming link"))
	}
	return items, errors.Join(faults...)
}

// supervised is one running Supervise.
type supervised struct {
	conn  *Conn
	link  *link
	name  string
	items []item
	fn    func(context.Context, *amqp.Channel) error
	log   *slog.Logger

	remembered bool
	added      []item // to what is remembered
}

// errLost marks an end after which fn is run again.
type errLost struct {
	why  error
	held time.Duration // how long fn ran
	fn   error         // what it returned
}

func (e errLost) Error() string { return e.why.Error() }

// run runs fn until there is a reason to stop.
func (w *supervised) run(ctx context.Context) error {
	pause := backoff.NewCounter(backoff.Policy{Min: w.conn.cfg.BackoffMin, Max: w.conn.cfg.BackoffMax})
	var last *session
	var why error
	for {
		delay := pause.Next()
		w.state(State{Phase: phaseStarting, Attempts: pause.Attempts(), NextTry: time.Now().Add(delay), Reason: textOf(why)})
		if backoff.Sleep(ctx, delay) != nil {
			return nil
		}
		s, err := w.session(ctx, pause.Attempts())
		if err != nil {
			return unlessEnded(ctx, err)
		}
		err = w.once(ctx, s, s == last)
		last = s
		var lost errLost
		switch {
		case !errors.As(err, &lost):
			return unlessEnded(ctx, err)
		case ctx.Err() != nil:
			return unlessEnded(ctx, unlessLost(lost.fn))
		}
		why = lost.why
		pause.Lost(lost.held)
		w.log.Warn("running again", "error", why)
	}
}

// session waits for the link, and says so when that takes time.
func (w *supervised) session(ctx context.Context, attempts int) (*session, error) {
	if _, err := w.link.now(); err != nil {
		w.state(State{Phase: phaseStarting, Attempts: attempts, Reason: w.link.role + " link: " + err.Error()})
	}
	return w.link.session(ctx, false)
}

// unlessEnded returns err, but nil when it only says that ctx has ended.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx))) {
		return nil
	}
	return err
}

// unlessLost returns err, but nil when it only says that the channel was lost.
func unlessLost(err error) error {
	var e *amqp.Error
	if errors.As(err, &e) || errors.Is(err, errChannelLost) {
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
		return errLost{why: err}
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
		return errLost{why: errors.Join(faults...)}
	}
	if !w.remembered { // only once: what is forgotten meanwhile stays forgotten
		w.remembered, w.added = true, w.conn.registry.remember(w.items)
	}
	return nil
}

// forget ends the redeclaring of exclusive queues that nobody but this function knew of: nobody consumes them any more.
func (w *supervised) forget() {
	w.conn.registry.forget(slices.DeleteFunc(w.added, func(it item) bool { return !it.exclusive }))
}

// Why a channel is lost when no *amqp.Error says it.
var (
	errChannelLost       = errors.New("channel lost")
	errConsumerCancelled = errors.New("a consumer was cancelled by the broker: its queue was deleted or moved")
	errChannelClosed     = errors.New("channel closed by the function that ran on it")
)

// call runs fn on ch and says how that ended.
func (w *supervised) call(ctx context.Context, s *session, ch *amqp.Channel) error {
	fnCtx, end := context.WithCancelCause(ctx)
	defer end(nil)
	lost := make(chan error, 1)
	closed, cancelled := ch.NotifyClose(make(chan *amqp.Error, 1)), ch.NotifyCancel(make(chan string, 8))
	if !s.spawn(func() { lost <- watchChannel(closed, cancelled, end) }) {
		return ErrClosed
	}
	w.state(State{Phase: report.Running})
	began := time.Now()
	err := w.protect(report.With(fnCtx, w.report), ch)
	held := time.Since(began)
	whole := !ch.IsClosed() && s.alive()
	if whole && !w.closeChannel(ctx, s, ch) {
		return err // it is closed when the broker reads again
	}
	why := <-lost
	switch {
	case isPermanent(err):
		return err
	case !whole:
		return errLost{w.explain(why, s), held, err}
	case errors.Is(why, errConsumerCancelled):
		return errLost{why, held, err}
	}
	return err
}

// watchChannel ends the function's context when its channel is lost, and returns why it was once it is closed: nil when
// nothing but a close of our own happened.
func watchChannel(closed <-chan *amqp.Error, cancelled <-chan string, end context.CancelCauseFunc) (why error) {
	note := func(err error) {
		end(fmt.Errorf("%w: %w", errChannelLost, err))
		if why == nil {
			why = err
		}
	}
	for {
		select {
		case _, ok := <-cancelled:
			if ok {
				note(errConsumerCancelled)
			} else {
				cancelled = nil
			}
		case err, ok := <-closed:
			if ok {
				note(err)
				continue
			}
			if cancelled != nil {
				for range cancelled { // closed as well; what came before that counts
					note(errConsumerCancelled)
				}
			}
			end(fmt.Errorf("%w: %w", errChannelLost, errChannelClosed))
			return why
		}
	}
}

// explain says why a channel is lost.
func (w *supervised) explain(why error, s *session) error {
	switch {
	case why != nil:
	case !s.alive():
		why = fmt.Errorf("connection lost: %w", s.lossOr(amqp.ErrClosed))
	default:
		why = errChannelClosed
	}
	return fmt.Errorf("%w: %w", errChannelLost, why)
}

// closeChannelWithin bounds the wait for the broker's answer to a channel's close.
const closeChannelWithin = 5 * time.Second

// closeChannel closes ch, and reports whether it is closed. When the broker does not answer, it drops the connection,
// which can only be dead: otherwise the deliveries of the old channel would stay assigned to it. Only a broker that blocks
// us may take its time.
func (w *supervised) closeChannel(ctx context.Context, s *session, ch *amqp.Channel) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeChannelWithin)
	defer cancel()
	done := make(chan struct{})
	if !s.spawn(func() { defer close(done); _ = ch.Close() }) {
		return true // the link is closed, and its socket with it
	}
	if until, _ := s.blocking(); until != nil {
		return false
	}
	select {
	case <-done:
		return true
	case <-ctx.Done():
	}
	if until, _ := s.blocking(); until != nil {
		return false
	}
	s.sock.Kill()
	<-done
	return true
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
	w.conn.board.update(w, s)
}

func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
