package reconnect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

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
	board      *board
	log        *slog.Logger

	ctx     context.Context // ends with the link
	end     context.CancelFunc
	stopped chan struct{} // closed when run has returned; nil until it was started

	mu      sync.Mutex
	current *session
	lastErr error         // why there is none
	changed chan struct{} // closed, and replaced, at each change of the two
	closed  bool
}

func newLink(role string, d *dialer, remembered func() []item, b *board) *link {
	ctx, end := context.WithCancel(context.Background())
	return &link{role: role, dialer: d, remembered: remembered, board: b, log: d.cfg.Logger.With("connection", d.cfg.Name, "link", role),
		ctx: ctx, end: end, changed: make(chan struct{})}
}

// start lets the link dial; only the first call has an effect, and none after close.
func (l *link) start() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped != nil || l.closed {
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
		s, lastErr, changed, closed := l.look()
		switch {
		case closed:
			return nil, ErrClosed
		case s != nil && s.alive():
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
	s, lastErr, _, closed := l.look()
	switch {
	case closed:
		return nil, ErrClosed
	case s == nil || !s.alive():
		return nil, notConnected(lastErr, nil)
	}
	return s, nil
}

func (l *link) look() (*session, error, <-chan struct{}, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current, l.lastErr, l.changed, l.closed
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

func (l *link) set(s *session, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.current, l.lastErr = s, err
	close(l.changed)
	l.changed = make(chan struct{})
}

// run is the link's one goroutine.
func (l *link) run(stopped chan struct{}) {
	defer close(stopped)
	pause := backoff.NewCounter(backoff.Policy{Min: l.dialer.cfg.BackoffMin, Max: l.dialer.cfg.BackoffMax})
	for l.ctx.Err() == nil {
		s, err := l.connect(pause)
		if err != nil {
			return // closed
		}
		select {
		case <-s.lost():
			l.lose(s, pause)
		case <-l.ctx.Done():
			return // close ends the session
		}
	}
}

// lose makes the loss of s known.
func (l *link) lose(s *session, pause *backoff.Counter) {
	held := time.Since(s.born)
	pause.Lost(held)
	err := fmt.Errorf("connection lost: %w", s.cause())
	l.set(nil, err)
	l.board.set(l.role, State{Phase: phaseConnecting, Reason: err.Error()})
	l.log.Warn("connection lost", "error", s.cause(), "held", held)
	s.sock.Kill()
	s.wg.Wait()
}

// connect dials, round after round, until a session has been made and everything remembered was declared on it.
func (l *link) connect(pause *backoff.Counter) (*session, error) {
	var lastErr error
	for {
		delay := pause.Next()
		if lastErr != nil && isRefusal(lastErr) {
			delay = max(delay, l.dialer.cfg.BackoffMax/2)
		}
		l.board.set(l.role, State{Phase: phaseConnecting, Attempts: pause.Attempts(), NextTry: time.Now().Add(delay), Reason: text(lastErr)})
		if err := backoff.Sleep(l.ctx, delay); err != nil {
			return nil, err
		}
		s, err := l.round()
		if err == nil {
			l.set(s, nil)
			l.board.set(l.role, State{Phase: phaseConnected})
			l.log.Info("connected", "attempts", pause.Attempts())
			return s, nil
		}
		if l.ctx.Err() != nil {
			return nil, l.ctx.Err()
		}
		lastErr = err
		l.set(nil, err)
		l.log.Warn("connecting failed", "error", err, "attempts", pause.Attempts())
	}
}

// round tries every address once. A refusal outweighs what other addresses say: it is what somebody has to mend.
func (l *link) round() (*session, error) {
	to, err := l.dialer.addresses(l.ctx)
	if err != nil {
		return nil, err
	}
	var first, refusal error
	for _, addr := range to {
		s, err := l.try(addr)
		switch {
		case err == nil:
			return s, nil
		case l.ctx.Err() != nil:
			return nil, err
		case isRefusal(err) && refusal == nil:
			refusal = err
		case first == nil:
			first = err
		}
	}
	if refusal != nil {
		return nil, refusal
	}
	return nil, first
}

func (l *link) try(to address) (*session, error) {
	o, err := l.dialer.dial(l.ctx, to, l.role)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", to.network, err)
	}
	s := newSession(o, l.blocked)
	s.declared.probe = func(ctx context.Context, e Exchange) error { return l.probe(ctx, to, e) }
	if !o.expires.IsZero() {
		s.wg.Go(func() { l.refresh(s, o.expires) })
	}
	// What cannot be declared holds back only those who name it; only a lost connection makes the session useless.
	for _, err := range s.declared.all(l.ctx, l.own(l.remembered())) {
		l.log.Error("declaring after a reconnect failed", "error", err)
	}
	if !s.alive() || l.ctx.Err() != nil {
		err := fmt.Errorf("connection to %s lost while declaring: %w", to.network, s.lossOr(amqp.ErrClosed))
		_ = s.close(time.Now())
		return nil, err
	}
	return s, nil
}

// probe declares an exchange of a kind that a plugin brings on a connection of its own: a broker without the plugin closes
// the whole connection (503, up to RabbitMQ 3.13.2).
func (l *link) probe(ctx context.Context, to address, e Exchange) error {
	o, err := l.dialer.dial(ctx, to, l.role+"/probe")
	if err != nil {
		return err
	}
	s := newSession(o, func(string, bool) {})
	defer func() { _ = s.close(time.Now().Add(time.Second)) }()
	return s.onChannel(ctx, func(ch *amqp.Channel) error { return e.declare(ch) })
}

// own leaves out what belongs on the other link.
func (l *link) own(items []item) []item {
	if l.role == consumingLink {
		return items
	}
	var out []item
	for _, it := range items {
		if !it.exclusive {
			out = append(out, it)
		}
	}
	return out
}

func (l *link) blocked(reason string, on bool) {
	if on {
		l.board.set(l.role, State{Phase: phaseBlocked, Reason: reason})
		l.log.Warn("blocked by the broker", "reason", reason)
		return
	}
	l.board.set(l.role, State{Phase: phaseConnected})
	l.log.Info("no longer blocked by the broker")
}

// refresh sends new credentials over the living connection before the old ones expire. When the provider fails it is
// asked again; when the broker refuses, it ends the connection, and the link dials with fresh ones.
func (l *link) refresh(s *session, expires time.Time) {
	retry := backoff.NewCounter(backoff.Policy{Min: time.Second, Max: 30 * time.Second})
	wait := time.Until(expires) * 2 / 3
	for !expires.IsZero() && backoff.Sleep(s.life, wait) == nil {
		next, err := l.renew(s)
		if err != nil {
			wait = max(retry.Next(), time.Second)
			l.log.Error("refreshing credentials failed", "error", err, "next", wait)
			continue
		}
		retry.Lost(time.Hour)
		expires, wait = next, time.Until(next)*2/3
	}
}

func (l *link) renew(s *session) (expires time.Time, err error) {
	auth, expires, err := l.dialer.credentials(s.life)
	if err != nil {
		return expires, err
	}
	secret := ""
	switch a := auth.(type) {
	case *amqp.PlainAuth:
		secret = a.Password
	case *amqp.AMQPlainAuth:
		secret = a.Password
	default:
		return time.Time{}, nil // a mechanism without a secret
	}
	return expires, s.do(s.life, func(context.Context) error { return s.conn.UpdateSecret(secret, "refresh before expiry") })
}

// close ends the link and its connection, politely until the deadline. Nothing of it runs afterwards.
func (l *link) close(deadline time.Time) error {
	l.mu.Lock()
	l.closed = true
	stopped := l.stopped
	l.mu.Unlock()
	l.end()
	if stopped != nil {
		<-stopped
	}
	s, _, _, _ := l.look()
	l.set(nil, ErrClosed)
	l.board.set(l.role, State{Phase: phaseClosed})
	if s == nil {
		return nil
	}
	return s.close(deadline)
}
