package reconnect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/warrenmq/warren/internal/backoff"
)

// Names of the two links, in State and as a part of the connections' names.
const (
	publishingLink = "publishing"
	consumingLink  = "consuming"
)

// link keeps one connection up, from the first use until it is closed: it dials, declares what is remembered, hands the
// session out, and starts over when that is lost.
//
// mu guards the fields below it and is never held while anything waits.
type link struct {
	role   string
	dialer *dialer
	// remembered is what has to be declared on a new session before it is handed out.
	remembered func() []item
	risks      *risks
	creating   *turns                // shared by the links of a Conn
	made       func(exchange string) // is told of each that was declared
	board      *board
	log        *slog.Logger
	// onBlame is told of sessions that were lost because of an unreadable message, or of what was sent.
	onBlame    func(why error)
	unreadable *unreadable // what is known of those who cause that
	level      slog.Level  // of the log lines when all is well

	ctx     context.Context // ends when the link must dial no more
	end     context.CancelFunc
	stopped chan struct{} // closed when run has returned; nil until it was started
	running *gate         // the goroutines that its sessions started

	showing sync.Mutex // held while the state of a session is shown, so that the last word is the right one

	mu       sync.Mutex
	current  *session
	lastErr  error         // why there is none
	changed  chan struct{} // closed, and replaced, at each change of these
	draining bool          // a session that is lost is not replaced
	closed   bool
}

func newLink(role string, d *dialer, remembered func() []item, b *board) *link {
	ctx, end := context.WithCancel(context.Background())
	l := &link{role: role, dialer: d, remembered: remembered, risks: newRisks(), creating: newTurns(), made: func(string) {}, board: b,
		log: d.cfg.Logger.With("connection", d.cfg.Name, "link", role),
		ctx: ctx, end: end, running: newGate(), changed: make(chan struct{})}
	l.unreadable = newUnreadable(l.log)
	l.onBlame = l.unreadable.lostLink
	return l
}

// start lets the link dial; only the first call has an effect, and none once it is draining.
func (l *link) start() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped != nil || l.draining {
		return
	}
	l.stopped = make(chan struct{})
	go l.run(l.stopped)
}

func (l *link) started() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stopped != nil
}

// session returns the session in force, starting the link and waiting until there is one. It ends with ctx, with
// ErrClosed, or, when fatal is set, with a refusal of the dial that trying again would not mend.
func (l *link) session(ctx context.Context, fatal bool) (*session, error) {
	l.start()
	for {
		s, lastErr, changed, err := l.look()
		switch {
		case err != nil:
			return nil, err
		case s != nil:
			return s, nil
		case fatal && lastErr != nil && isRefusal(lastErr):
			return nil, lastErr
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, notConnected(ended(ctx), lastErr)
		}
	}
}

// now returns the session in force, without waiting.
func (l *link) now() (*session, error) {
	l.start()
	s, lastErr, _, err := l.look()
	if err == nil && s == nil {
		err = notConnected(lastErr, nil)
	}
	return s, err
}

// look returns the session if there is one that lives; else why there is none, what is closed when that changes, and
// ErrClosed when there never will be another.
func (l *link) look() (s *session, lastErr error, changed <-chan struct{}, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current != nil && l.current.alive() {
		s = l.current
	}
	if l.closed || l.draining && s == nil {
		return nil, nil, nil, ErrClosed
	}
	return s, l.lastErr, l.changed, nil
}

func notConnected(why, last error) error {
	switch {
	case why == nil:
		return errors.New("not connected")
	case last == nil:
		return fmt.Errorf("not connected: %w", why)
	}
	return fmt.Errorf("not connected: %w; last error: %w", why, last)
}

// change makes a change of what mu guards and lets those know who wait for one.
func (l *link) change(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *link) set(s *session, err error) {
	l.change(func() { l.current, l.lastErr = s, err })
}

// run is the link's one goroutine.
func (l *link) run(stopped chan struct{}) {
	defer close(stopped)
	pause := backoff.NewCounter(backoff.Policy{Min: l.dialer.cfg.BackoffMin, Max: l.dialer.cfg.BackoffMax})
	var why error // of the last loss
	for {
		s, err := l.connect(pause, why)
		if err != nil {
			return // closed
		}
		select {
		case <-s.lost():
			why = l.lose(s, pause)
		case <-l.ctx.Done():
			return // close ends the session
		}
	}
}

// lose makes the loss of s known.
func (l *link) lose(s *session, pause *backoff.Counter) error {
	l.judge(s)
	held := time.Since(s.born)
	pause.Lost(held)
	err := fmt.Errorf("connection lost: %w", s.cause())
	l.set(nil, err)
	level := slog.LevelWarn
	if l.ctx.Err() != nil {
		level = slog.LevelDebug // it is not dialed again: whoever ended it knows
	}
	l.log.Log(l.ctx, level, "connection lost", "error", s.cause(), "held", held)
	s.sock.Kill()
	return err
}

// connect dials, round after round, until a session has been made and everything remembered was declared on it. why is
// the reason why there is none.
func (l *link) connect(pause *backoff.Counter, why error) (*session, error) {
	for refused := false; ; refused = isRefusal(why) {
		delay := pause.Next()
		if refused {
			delay = max(delay, l.dialer.cfg.BackoffMax/2)
		}
		if looksDeleted(why) {
			delay = max(delay, afterDeletion)
		}
		l.board.set(l.role, State{Phase: phaseConnecting, Attempts: pause.Attempts(), NextTry: time.Now().Add(delay), Reason: textOf(why)})
		if err := backoff.Sleep(l.ctx, delay); err != nil {
			return nil, err
		}
		s, err := l.round()
		if err == nil {
			l.set(s, nil)
			l.show(s)
			l.log.Log(l.ctx, l.level, "connected", "attempts", pause.Attempts())
			return s, nil
		}
		if l.ctx.Err() != nil {
			return nil, l.ctx.Err()
		}
		why = err
		l.set(nil, err)
		l.log.Warn("connecting failed", "error", err, "attempts", pause.Attempts())
	}
}

// show makes the state of a session that was handed out known: connected or blocked.
func (l *link) show(s *session) {
	l.showing.Lock()
	defer l.showing.Unlock()
	if now, _, _, _ := l.look(); now != s {
		return
	}
	if until, reason := s.blocking(); until != nil {
		l.board.set(l.role, State{Phase: phaseBlocked, Reason: reason})
		return
	}
	l.board.set(l.role, State{Phase: phaseConnected})
}

// drain makes the link dial no more. Its session, if there is one, goes on to serve.
func (l *link) drain() {
	l.change(func() { l.draining = true })
	l.end()
}

// close ends the link and its connection, politely until the deadline. Nothing of it runs afterwards, unless a function
// of the user's (Credentials, TLSFunc, DialContext) ignores its context: close waits for it until last, and its error says
// so.
func (l *link) close(deadline time.Time, last context.Context) error {
	l.drain()
	if !l.started() {
		return nil
	}
	var faults []error
	select {
	case <-l.stopped:
	case <-last.Done():
		faults = append(faults, fmt.Errorf("%s link: a dial in progress ignores its context", l.role))
	}
	var s *session
	l.change(func() { s, l.current, l.lastErr, l.closed = l.current, nil, ErrClosed, true })
	if s != nil {
		faults = append(faults, s.close(deadline))
	}
	l.board.set(l.role, State{Phase: phaseClosed})
	// Whatever the driver does has ended with its socket.
	if n := l.running.shut(last); n > 0 {
		faults = append(faults, fmt.Errorf("%s link: %d calls ignore that their connection is gone", l.role, n))
	}
	return errors.Join(faults...)
}
