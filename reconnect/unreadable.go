package reconnect

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// A message whose headers are nested deeper than the driver reads, or have outgrown the frame since they were published
// (a dead-lettering adds some), closes the connection of whoever is sent it, and comes back to be sent again. On a shared
// connection each such loss also returns the messages of everybody else, which counts towards their delivery limit.
//
// So after the second such loss of a link within suspectWithin every supervised function on it goes apart: it
// gets a connection of its own and one message at a time, so that the loss of that connection returns the guilty message
// alone. The first connection that is lost in the same way shows which queue is guilty. The functions that read it stay
// apart, and go on so that the broker's delivery limit takes the message out; those of other queues go back to the link.
//
// The same goes for what makes the broker end the connection whenever it is sent: a queue that answers basic.consume with
// an internal error, a function that asks, or publishes, what is not to be had. It would cost everybody else the link again
// and again. The two links of a Conn are judged apart from each other; what uses a Publisher stays on the publishing one.
//
// Functions that name exclusive queues stay on the link, since the queues cannot leave it: such a queue goes with its
// connection, and the message with it. What uses Channel stays there, too; for as long as it loses the link so, all
// others are apart from it.
const (
	suspectWithin = time.Minute
	// quietFor ends a suspicion, whether it was shown to be right or not: no connection was lost so for that long.
	quietFor = time.Minute
	// showWithin is what other guilty queues have to show themselves after the first one did.
	showWithin = 2 * time.Second
	// unreadablePause bounds the pause of a guilty function. A delivery limit of 20 is reached in half a minute.
	unreadablePause = 2 * time.Second
	// endedPause bounds the pause of one that makes the broker end its connection: it must show that again while it is held
	// to be guilty, since it would come back to the link otherwise.
	endedPause = quietFor / 2
)

// blame is what about a function costs it the connection.
type blame struct{ suspected, found, apart, search string }

var (
	unreadableBlame = blame{
		suspected: "a message that cannot be read has closed the connection again: each supervised function gets one of its own " +
			"until it is known which queue holds it",
		found:  "holds a message that cannot be read, and is read apart from the others",
		apart:  "holds a message that cannot be read; apart on a connection of its own, which the message closes",
		search: "apart on a connection of its own until it is known which queue holds a message that cannot be read",
	}
	endedBlame = blame{
		suspected: "the broker has ended the connection with an error again: each supervised function gets one of its own " +
			"until it is known which of them is the reason",
		found:  "makes the broker end the connection, and runs apart from the others",
		apart:  "makes the broker end the connection; apart on one of its own",
		search: "apart on a connection of its own until it is known which function makes the broker end the connection",
	}
)

// blameOf tells by the cause of a loss which of them it is.
func blameOf(why error) *blame {
	if endedBy(why) {
		return &endedBlame
	}
	return &unreadableBlame
}

// unreadable is what a link knows of messages that nobody can read.
type unreadable struct {
	log *slog.Logger

	mu      sync.Mutex
	last    time.Time           // loss of the link
	all     sentence            // of every function
	guilty  map[string]sentence // of these
	changed chan struct{}       // closed, and replaced, when one of these has changed
	links   map[*link]struct{}  // of functions that are apart
	closed  bool
}

// sentence says until when a function is apart, and what for.
type sentence struct {
	until time.Time
	of    *blame
}

func newUnreadable(log *slog.Logger) *unreadable {
	return &unreadable{log: log, guilty: map[string]sentence{}, changed: make(chan struct{}), links: map[*link]struct{}{}}
}

// lostLink takes note of a loss of the link.
func (u *unreadable) lostLink(why error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now, of := time.Now(), blameOf(why)
	if !u.last.IsZero() && now.Sub(u.last) < suspectWithin {
		u.log.Warn(of.suspected, "error", why)
		u.all = sentence{now.Add(quietFor), of}
		u.wake()
	}
	u.last = now
}

// lostOwn takes note of the loss of the connection that only the function of a queue uses.
func (u *unreadable) lostOwn(who string, why error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now, of := time.Now(), blameOf(why)
	if !u.guilty[who].until.After(now) {
		u.log.Error(of.found, "source", who, "error", why)
		if u.all.until.After(now) {
			u.all.until = now.Add(showWithin)
		}
	}
	u.guilty[who] = sentence{now.Add(quietFor), of}
	u.wake()
}

// retold has those who wait look again: a function has said which queue it reads.
func (u *unreadable) retold() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.wake()
}

// wake makes those who wait look again. The caller holds mu.
func (u *unreadable) wake() {
	close(u.changed)
	u.changed = make(chan struct{})
}

// state says until when the functions of a queue are apart, why, and what is closed when that changes. The time is not in
// the future when they are not apart.
func (u *unreadable) state(who string) (until time.Time, why string, changed <-chan struct{}) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	own := u.guilty[who]
	until = own.until
	switch {
	case until.After(now):
		why = who + " " + own.of.apart
	case u.all.until.After(now):
		why = u.all.of.search
	}
	if u.all.until.After(until) {
		until = u.all.until
	}
	return until, why, u.changed
}

// awaitOver waits until the functions of a queue need not be apart, and calls changed when the reason may have changed.
// It returns false when ctx ends before.
func (u *unreadable) awaitOver(ctx context.Context, who func() string, changed func()) bool {
	for {
		until, _, wake := u.state(who())
		rest := time.Until(until)
		if rest <= 0 {
			return true
		}
		timer := time.NewTimer(rest)
		select {
		case <-timer.C:
		case <-wake:
			timer.Stop()
			changed()
		case <-ctx.Done():
			timer.Stop()
			return false
		}
	}
}

// add makes room for a link of a function that is apart. It returns false when the Conn is closing.
func (u *unreadable) add(l *link) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.closed {
		u.links[l] = struct{}{}
	}
	return !u.closed
}

func (u *unreadable) remove(l *link) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.links, l)
}

// shut lets no more links in, and returns those that are there.
func (u *unreadable) shut() []*link {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closed = true
	var out []*link
	for l := range u.links {
		out = append(out, l)
	}
	return out
}

// unreadable reports whether the session was lost because the driver could not make sense of what it read. It says so in
// the same way as that it could not read; the socket knows better.
func (s *session) unreadable() bool {
	e, ok := s.cause().(*amqp.Error)
	return ok && !e.Server && (e.Code == amqp.FrameError || e.Code == amqp.SyntaxError) && !s.sock.ReadFailed()
}

// endedBy reports whether the broker ended a connection over something that was sent on it. What it does not allow (530) is
// not meant: that is also what it says of credentials that it refuses in the middle.
func endedBy(why error) bool {
	e, ok := why.(*amqp.Error)
	return ok && e.Server && e.Code != amqp.NotAllowed && slices.Contains(hardErrors, e.Code)
}

// judge makes it known, once, when a session was lost because of an unreadable message, or of what was sent. Whoever learns
// of the loss first does it, before anything else is done about the loss.
func (l *link) judge(s *session) {
	s.judged.Do(func() {
		if s.unreadable() || endedBy(s.cause()) {
			l.onBlame(s.cause())
		}
	})
}

// ownLink is a link for one supervised function. What that needs it declares itself; a session that it has lost by its own
// guilt is not replaced, since the function is to pause first.
func (c *Conn) ownLink(w *supervised) *link {
	shared := w.link
	l := newLink(shared.role+"/apart", shared.dialer, func() []item { return nil }, newBoard(nil))
	l.creating, l.made = shared.creating, shared.made
	l.log, l.level, l.risks = l.log.With("worker", w.name), slog.LevelDebug, shared.risks
	l.onBlame = func(err error) {
		switch {
		case w.wish == nil:
			l.drain()
			shared.unreadable.lostOwn(w.source(), err)
		case !endedBy(err): // it knows what to do, and nobody shares its connection
			l.drain()
			w.wish.Unreadable(err)
		}
	}
	return l
}

// source names what a supervised function reads: its queue, if it said so, or else itself.
func (w *supervised) source() string {
	if queue, ok := w.queue.Load().(string); ok {
		return queueEntity(queue).String()
	}
	return fmt.Sprintf("function %q", w.name)
}
