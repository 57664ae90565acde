package reconnect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/apart"
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
// A message that the driver cannot read closes the connection of its reader, and comes again; and there are queues, and
// mistakes of an fn, over which the broker ends the connection each time (501 to 505, 540, 541). When that happens to the
// link repeatedly, each fn is run on a connection of its own until it is known which one it is, and that one
// for as long as it lasts; its State's Reason says so. To be moved, fn's context ends, and fn is run again after it has
// returned. A fn whose t names exclusive queues is not moved.
//
// fn's context ends with ctx, with the Conn's closing, or when its channel is lost, which is then its cause. fn must not
// use the channel from two goroutines at once for calls that wait for an answer (declare, consume, qos); it may leave the
// channel open.
//
// The close of a channel says nothing of acknowledgements that were sent just before: up to 32 of them reach a quorum queue,
// further ones the broker may drop with the channel, and their messages come again (of 200 single ones, in two of three
// runs or more). So a fn that settles by hand calls Cancel for its consumer and then Qos before it returns: the answer to the
// second comes when the queue has all (no message came again). An acknowledgement of many at once counts as one.
func (c *Conn) Supervise(ctx context.Context, name string, t Topology, fn func(ctx context.Context, ch *amqp.Channel) error) error {
	return c.supervise(ctx, c.consuming, name, t, fn)
}

// SupervisePublishing is Supervise on the publishing link, for a fn that publishes by hand. There the broker stops
// reading during a resource alarm, acknowledgements included. A fn that ends that link again and again, with what it publishes
// (540 for immediate, 541 for a forged direct reply-to address) or with what it is sent, is run apart as there; a Publisher
// stays on the link.
func (c *Conn) SupervisePublishing(ctx context.Context, name string, t Topology, fn func(ctx context.Context, ch *amqp.Channel) error) error {
	return c.supervise(ctx, c.publishing, name, t, fn)
}

func (c *Conn) supervise(ctx context.Context, l *link, name string, t Topology, fn func(context.Context, *amqp.Channel) error) (err error) {
	items, err := c.admitWorker(l, name, t, fn == nil)
	if err != nil {
		return err
	}
	if !c.workers.enter() {
		return ErrClosed
	}
	defer c.workers.leave()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.life, func() { cancel(ErrClosed) })()
	w := &supervised{conn: c, link: l, name: name, items: items, fn: fn, log: l.log.With("worker", name), wish: apart.Of(ctx)}
	w.tied.Store(hasExclusive(items))
	c.board.add(w, State{Name: name, Phase: phaseStarting})
	defer func() { c.board.remove(w, err) }()
	defer w.forget()
	defer w.closeOwn()
	err = w.run(ctx)
	switch {
	case err == nil && context.Cause(ctx) == ErrClosed:
		return ErrClosed
	case err != nil:
		w.log.Error("ended", "error", err)
	}
	return err
}

func (c *Conn) admitWorker(l *link, name string, t Topology, noFunction bool) ([]item, error) {
	items, err := c.admit(t)
	faults := []error{err}
	bad := func(fault string) { faults = append(faults, fmt.Errorf("reconnect: supervise %q: %s", name, fault)) }
	if name == "" {
		bad("name: empty")
	}
	if noFunction {
		bad("fn: nil")
	}
	if l.role == publishingLink && hasExclusive(items) {
		bad("topology: exclusive queues belong on the consuming link")
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

	// See unreadable.go.
	wish  *apart.Wish  // to be apart all the time; nil: none
	own   *link        // when it is apart
	tied  atomic.Bool  // it must not be
	queue atomic.Value // string, from which it reads, once it said so

	saying sync.Mutex // held while its state is recorded, so that the last word is the right one
	said   State      // the last one, without what note adds
}

// errLost marks an end after which fn is run again.
type errLost struct {
	why  error
	held time.Duration // how long fn ran
	fn   error         // what it returned
}

func (e errLost) Error() string { return e.why.Error() }

// afterDeletion is how long nothing is declared again after what a deleted queue does to those who use it. Up to RabbitMQ
// 3.13 a channel that has not got around to cancelling its consumer, a few times 30 ms later, attaches it to a queue
// that has come back under the same name, tells nobody, and takes that queue's first deliveries for ones it has seen: they
// stay with it, unacknowledged, until it is closed.
const afterDeletion = 250 * time.Millisecond

// looksDeleted reports whether why is one of the things that a deleted queue does: the broker cancels the consumer, finds no
// queue to consume from, ends the connection with 541, or answers twice, so that the answers no longer fit; what comes
// then on a channel that was given up makes the driver end the connection with 504.
func looksDeleted(why error) bool {
	if errors.Is(why, errConsumerCancelled) {
		return true
	}
	switch amqpCode(why) {
	case amqp.NotFound, amqp.InternalError, amqp.CommandInvalid, amqp.ChannelError:
		return true
	}
	return false
}

// run runs fn until there is a reason to stop.
func (w *supervised) run(ctx context.Context) error {
	pause := backoff.NewCounter(backoff.Policy{Min: w.conn.cfg.BackoffMin, Max: w.conn.cfg.BackoffMax})
	var last *session
	var why error
	var atMost time.Duration // for which to pause; zero: as long as it takes
	for {
		delay := pause.Next()
		if atMost > 0 {
			delay = min(delay, atMost)
		}
		if looksDeleted(why) {
			delay = max(delay, afterDeletion)
		}
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
		case err == errMoved:
			why, atMost = nil, 0
			pause.Reset()
			continue
		case !errors.As(err, &lost):
			return unlessEnded(ctx, err)
		case ctx.Err() != nil:
			return unlessEnded(ctx, unlessLost(lost.fn))
		}
		why, atMost = lost.why, w.afterLoss(s, lost.why)
		pause.Lost(lost.held)
		w.logLoss(s, lost)
	}
}

// logLoss says why fn runs again; at a loss of the connection the link has said so for all who stand on it.
func (w *supervised) logLoss(s *session, lost errLost) {
	level, msg := slog.LevelWarn, "running again"
	switch {
	case !s.alive():
		level = slog.LevelDebug
	case lost.held == 0:
		msg = "cannot run yet, trying again"
	}
	w.log.Log(context.Background(), level, msg, "error", lost.why)
}

// session waits for the link, and says so when that takes time.
func (w *supervised) session(ctx context.Context, attempts int) (*session, error) {
	for {
		l, err := w.place()
		if err != nil {
			return nil, err
		}
		if _, err := l.now(); err != nil {
			w.state(State{Phase: phaseStarting, Attempts: attempts, Reason: l.role + " link: " + err.Error()})
		}
		s, err := l.session(ctx, false)
		if err != nil || l != w.link || !w.apart() { // which may have come while it waited
			return s, err
		}
	}
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

func (w *supervised) report(phase, reason string) {
	w.state(State{Phase: phase, Reason: reason})
}

func (w *supervised) state(s State) {
	w.saying.Lock()
	defer w.saying.Unlock()
	s.Name = w.name
	w.said = s
	s.Reason = w.note(s.Reason)
	w.conn.board.update(w, s)
}

// repeat records the state again, in case that note says something else now.
func (w *supervised) repeat() {
	w.saying.Lock()
	defer w.saying.Unlock()
	s := w.said
	s.Reason = w.note(s.Reason)
	w.conn.board.update(w, s)
}

func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
