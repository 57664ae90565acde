package exchange

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/report"
	"github.com/warrenmq/warren/reconnect"
)

// live is the queue of a live subscription, on which all channels of its subscriber consume: one on each connection, under
// a fresh name. See the package comment.
type live struct {
	conn  *reconnect.Conn
	sub   Subscription
	onGap func(from, to time.Time)
	over  overflow
	held  int64 // messages that the subscriber's channels may hold
	log   *slog.Logger

	// turn is held, by sending to it, while the queue is looked for, made or deleted, OnGap included. It guards what follows.
	turn  chan struct{}
	queue string          // "": there is none
	ready bool            // the queue is declared and bound; else its channel was lost before all of that was answered
	home  <-chan struct{} // closed when the queue's connection is gone

	users users
	mu    sync.Mutex
	known time.Time // the last moment at which the queue was known to be bound; zero: it never was
}

func newLive(conn *reconnect.Conn, s Subscription, cfg SubscriberConfig) *live {
	log := slog.Default()
	if conn != nil {
		log = conn.Config().Logger
	}
	log = log.With("exchange", s.Exchange.Name)
	return &live{conn: conn, sub: s, onGap: cfg.OnGap, over: overflow{call: cfg.OnOverflow, log: log}, log: log,
		turn: make(chan struct{}, 1)}
}

// open returns the queue to consume on ch, and what to call when ch is no longer used. The first channel of a connection
// makes the queue, and reports the gap before any channel consumes from it.
//
// When the Conn gives its workers connections of their own, because what one of them reads costs the connection, the queue
// belongs to the first that made one, and the others wait until it is free: with a queue each, all of them would handle
// every message.
func (l *live) open(ctx context.Context, ch *amqp.Channel) (queue string, shut func(), err error) {
	for {
		found, err := l.find(ctx, ch)
		if err != nil {
			return "", nil, err
		}
		if found.queue != "" {
			return found.queue, sync.OnceFunc(func() { l.users.leave(found.queue) }), nil
		}
		report.State(ctx, report.Waiting, errElsewhere.Error())
		select {
		case <-found.free:
		case <-found.gone:
		case <-report.Leave(ctx):
			return "", nil, errElsewhere
		case <-ctx.Done():
			return "", nil, context.Cause(ctx)
		}
	}
}

var errElsewhere = errors.New("the subscription's queue is on another connection")

// place is the queue to consume, or, without one, when to look again: when nobody uses the present one any more, or its
// connection is gone.
type place struct {
	queue      string
	free, gone <-chan struct{}
}

// find finds or makes the queue for ch.
func (l *live) find(ctx context.Context, ch *amqp.Channel) (place, error) {
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return place{}, context.Cause(ctx)
	}
	here := report.Connection(ctx)
	if isClosed(here) {
		return place{}, amqp.ErrClosed // and who follows on the next one must not find the queue moved here
	}
	switch {
	case l.queue == "":
	case l.home == here && l.ready:
		if err := l.again(ch); err != nil {
			return place{}, err
		}
		l.users.enter(l.queue)
		return place{queue: l.queue}, nil
	case l.home != here && !isClosed(l.home):
		if free := l.users.free(l.queue); free != nil {
			return place{free: free, gone: l.home}, nil
		}
		l.remove(ctx, l.queue, l.home) // left behind on a connection that lives on
	}
	if l.queue == "" || l.home != here {
		l.queue, l.home, l.ready = l.sub.freshName(), here, false
	}
	if err := l.make(ch); err != nil {
		return place{}, err // the next channel of this connection goes on with what may be there already
	}
	l.ready = true
	l.users.enter(l.queue)
	l.bound(time.Now())
	return place{queue: l.queue}, nil
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// again makes sure that the queue is still there, and bound: only its channel was lost. One that somebody deleted is
// replaced on the next channel, since this one is closed by the answer. The exchange may have been deleted, too, with the
// bindings, and has been declared again by now.
func (l *live) again(ch *amqp.Channel) error {
	_, err := ch.QueueDeclarePassive(l.queue, false, false, true, false, nil)
	var refusal *amqp.Error
	switch {
	case err == nil:
		return l.bind(ch)
	case errors.As(err, &refusal) && refusal.Code == amqp.NotFound:
		l.queue = ""
	}
	return err
}

// make declares the queue and binds it. It uses the driver, and not the Conn's topology, which would make it again on the
// next connection.
func (l *live) make(ch *amqp.Channel) error {
	name := l.queue
	q := l.sub.live(name)
	if _, err := ch.QueueDeclare(name, false, false, true, false, q.Arguments); err != nil {
		return explain(fmt.Sprintf("queue %q", name), err, name)
	}
	return l.bind(ch)
}

func (l *live) bind(ch *amqp.Channel) error {
	for _, b := range l.sub.bindings(l.sub.keys(), l.queue) {
		if err := ch.QueueBind(b.Queue, b.Key, b.Exchange, false, nil); err != nil {
			return explain(fmt.Sprintf("binding %q -> queue %q by %q", b.Exchange, b.Queue, b.Key), err, b.Queue, b.Exchange)
		}
	}
	return nil
}

// explain turns a refusal of one of the names that only a person can mend into what the Conn makes of one. Others than
// those that name it are not about it, but why the channel was lost meanwhile.
func explain(entity string, err error, names ...string) error {
	var refusal *amqp.Error
	if errors.As(err, &refusal) && refusal.Server && (refusal.Code == amqp.AccessRefused || refusal.Code == amqp.PreconditionFailed) &&
		slices.ContainsFunc(names, func(name string) bool { return speaksOf(refusal.Reason, name) }) {
		return &reconnect.TopologyError{Entity: entity, Err: err}
	}
	return fmt.Errorf("declare %s: %w", entity, err)
}

// speaksOf reports whether a reason, which the broker cuts off at 255 bytes, has the name in it.
func speaksOf(reason, name string) bool {
	const enough = 100
	return strings.Contains(reason, "'"+name[:min(len(name), enough)])
}

// bound notes that a new queue is bound, and reports that none was since the last one was known to be.
func (l *live) bound(now time.Time) {
	l.mu.Lock()
	from := l.known
	l.known = now
	l.mu.Unlock()
	if from.IsZero() {
		return
	}
	l.log.Warn("live subscription was not bound; what was published meanwhile is missed", "from", from, "to", now)
	if l.onGap != nil {
		l.protect("OnGap", func() { l.onGap(from, now) })
	}
}

// watch is shown the queue from time to time. When the answer comes the queue may be gone again, but when it was asked
// for it was there.
func (l *live) watch(q amqp.Queue, asked time.Time) (next time.Duration) {
	l.mu.Lock()
	if asked.After(l.known) {
		l.known = asked
	}
	l.mu.Unlock()
	return l.over.look(int64(q.Messages), l.sub.liveLength(), l.held)
}

// leaveWithin bounds the deletion of the queue at the end of Run, after which the connection's end deletes it.
const leaveWithin = 5 * time.Second

// leave deletes the queue, which would otherwise be filled for as long as the connection lives.
func (l *live) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveWithin)
	defer cancel()
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return // an OnGap that does not return has it
	}
	queue, home := l.queue, l.home
	l.queue, l.home = "", nil
	if queue != "" && !isClosed(home) {
		l.remove(ctx, queue, home)
	}
	l.over.wait(ctx)
}

// remove deletes a queue that was made on the Conn's own connection, if it can be done soon; else it goes with that, and when
// home says that the connection is gone the queue is.
func (l *live) remove(ctx context.Context, queue string, home <-chan struct{}) {
	ctx, cancel := context.WithTimeout(ctx, leaveWithin)
	defer cancel()
	go func() {
		defer cancel()
		select {
		case <-home:
		case <-ctx.Done():
		}
	}()
	ch, err := l.conn.Channel(ctx)
	if err != nil {
		return
	}
	within(ctx, func() { // the driver's calls take no context; they end with the connection at the latest
		defer ch.Close()
		if _, err := ch.QueueDelete(queue, false, false, false); err != nil {
			l.log.Warn("queue of an ended live subscription not deleted; it goes with the connection", "queue", queue, "error", err)
		}
	})
}

// within waits for f until ctx ends.
func within(ctx context.Context, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// protect calls back into the user's code.
func (l *live) protect(what string, f func()) { protect(l.log, what, f) }

func protect(log *slog.Logger, what string, f func()) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("panic in "+what, "panic", p, "stack", string(debug.Stack()))
		}
	}()
	f()
}
