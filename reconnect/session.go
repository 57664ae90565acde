package reconnect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/coalesce"
)

// session is one connection to the broker from handshake to loss. It is never reopened: after a loss the link makes a new
// one, so whatever belongs to the old one (channels, delivery tags, confirms) can only fail, never hit the new one.
type session struct {
	conn *amqp.Connection
	sock *coalesce.Conn
	user string // for UserId; "" when the authentication does not tell it
	born time.Time

	// life ends with the connection; its cause says why.
	life context.Context
	end  context.CancelCauseFunc

	mu        sync.Mutex
	blocked   string        // the broker's reason while it blocks publishers
	unblocked chan struct{} // closed when the blocking ends; nil while there is none
	onBlock   func(*session)

	judged sync.Once // whether one of its users is to blame for its end

	declared *declarations
	// apart runs a function on a channel of a connection of its own to the same broker.
	apart func(ctx context.Context, f func(*amqp.Channel) error) error
	// answersElsewhere returns nil when the broker answers on a new connection.
	answersElsewhere func(context.Context) error
	checking         atomic.Bool  // whether the broker reads from this one
	read             atomic.Int64 // how much of what was written to sock it is known to have read

	running *gate // the link's: its goroutines that talk to the broker, on behalf of callers who may have gone
}

// newSession takes over an open connection. onBlock is called, from the session's own goroutine, when what blocking
// returns has changed.
func newSession(o opened, running *gate, onBlock func(*session)) *session {
	s := &session{conn: o.conn, sock: o.sock, user: o.user, born: time.Now(), running: running, onBlock: onBlock}
	s.life, s.end = context.WithCancelCause(context.Background())
	s.declared = newDeclarations(s)
	// Both are registered before anything else uses the connection, and have room: a notification that finds none holds
	// up the connection's only reader.
	closed := o.conn.NotifyClose(make(chan *amqp.Error, 1))
	blockings := o.conn.NotifyBlocked(make(chan amqp.Blocking, 16))
	if !s.spawn(func() { s.watch(closed, blockings) }) {
		s.sock.Kill() // the link was closed meanwhile
		s.end(ErrClosed)
	}
	return s
}

// spawn runs f in a goroutine that the link's close waits for. It does not, and returns false, after that close.
func (s *session) spawn(f func()) bool {
	if !s.running.enter() {
		return false
	}
	go func() {
		defer s.running.leave()
		f()
	}()
	return true
}

// watch records the alarms and the end of the connection.
func (s *session) watch(closed chan *amqp.Error, blockings chan amqp.Blocking) {
	for {
		select {
		case b, ok := <-blockings:
			if !ok {
				blockings = nil // the connection is closing
				continue
			}
			s.setBlocked(b)
		case err := <-closed: // nil after a close of our own
			s.end(closeError(err))
			s.sock.Kill()
			return
		}
	}
}

// lost is closed once the connection is gone.
func (s *session) lost() <-chan struct{} { return s.life.Done() }

// cause says why it is gone.
func (s *session) cause() error { return context.Cause(s.life) }

// closeError turns what a NotifyClose channel gave into an error; it gives ErrClosed for a close that we asked for.
func closeError(err *amqp.Error) error {
	if err == nil {
		return amqp.ErrClosed
	}
	return err
}

func (s *session) setBlocked(b amqp.Blocking) {
	s.mu.Lock()
	was := s.unblocked != nil
	switch {
	case b.Active && !was:
		s.unblocked, s.blocked = make(chan struct{}), b.Reason
	case !b.Active && was:
		close(s.unblocked)
		s.unblocked, s.blocked = nil, ""
	}
	s.mu.Unlock()
	if b.Active != was {
		s.sock.SetBlocked(b.Active)
		s.onBlock(s)
	}
}

// blocking returns the channel that is closed when the broker's blocking ends and its reason, or nil when it does not
// block.
func (s *session) blocking() (until <-chan struct{}, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unblocked, s.blocked
}

// isBlocked reports whether the broker blocks publishers now.
func (s *session) isBlocked() bool {
	until, _ := s.blocking()
	return until != nil
}

// awaitUnblocked waits until the broker does not block, ctx ends or the connection is lost. What is asked of a broker
// that does not read is not answered, and would leave a goroutine and a channel behind for as long as the alarm lasts.
func (s *session) awaitUnblocked(ctx context.Context) error {
	for {
		if ctx.Err() != nil {
			return ended(ctx)
		}
		until, reason := s.blocking()
		if until == nil {
			return nil
		}
		select {
		case <-until:
		case <-s.lost():
			return s.cause()
		case <-ctx.Done():
			return fmt.Errorf("%w: %s: %w", ErrBlocked, reason, ended(ctx))
		}
	}
}

// alive reports whether the connection is not known to be gone.
func (s *session) alive() bool {
	return s.life.Err() == nil && !s.conn.IsClosed()
}

// do runs f, which talks to the broker and cannot be interrupted, and waits for it until ctx ends. A call that is given
// up goes on in the background until the broker answers or the connection ends; f gets a context that tells it so.
func (s *session) do(ctx context.Context, f func(ctx context.Context) error) error {
	if err := s.awaitUnblocked(ctx); err != nil {
		return err
	}
	done := make(chan error, 1)
	if !s.spawn(func() { done <- f(ctx) }) {
		return ErrClosed
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ended(ctx)
	}
}

// channel opens a channel. The caller closes it.
func (s *session) channel(ctx context.Context) (*amqp.Channel, error) {
	var opened *amqp.Channel
	var met atomic.Bool // set by the opener and by a caller who gives up: the second of them sees to the channel
	err := s.do(ctx, func(context.Context) error {
		ch, err := s.conn.Channel()
		if err != nil {
			return s.lossOr(err)
		}
		opened = ch
		if met.Swap(true) {
			_ = ch.Close()
		}
		return nil
	})
	if err != nil && !met.Swap(true) {
		return nil, fmt.Errorf("open channel: %w", err)
	}
	return opened, nil
}

// lossOr returns why the connection was lost when that is the true reason of err, which then only says "closed".
func (s *session) lossOr(err error) error {
	if !errors.Is(err, amqp.ErrClosed) || !s.conn.IsClosed() {
		return err
	}
	select {
	case <-s.lost():
		return s.cause()
	case <-time.After(time.Second): // the watcher is told right after the connection is marked closed
		return err
	}
}

// onChannel runs f on a throw-away channel: a refusal closes that one alone.
func (s *session) onChannel(ctx context.Context, f func(ch *amqp.Channel) error) error {
	return s.do(ctx, func(context.Context) error {
		ch, err := s.conn.Channel()
		if err != nil {
			return s.lossOr(err)
		}
		defer func() { _ = ch.Close() }() // closed already when f was refused
		return s.lossOr(f(ch))
	})
}

// politeFor bounds the wait for the broker's answer to connection.close.
const politeFor = 5 * time.Second

// close ends the connection: politely, until the deadline, if the broker reads what we send, else by dropping the socket.
func (s *session) close(deadline time.Time) error {
	defer s.sock.Kill()
	if polite := time.Now().Add(politeFor); deadline.After(polite) {
		deadline = polite
	}
	if s.isBlocked() || !time.Now().Before(deadline) || !s.alive() {
		return nil
	}
	err := s.conn.CloseDeadline(deadline)
	var e *amqp.Error
	if errors.Is(err, amqp.ErrClosed) || errors.As(err, &e) && (e.Server || hungUp(e)) {
		return nil // the broker closed it at the same time
	}
	return err
}

// hungUp reports whether a connection ended because the other side did. The driver has that as the text of a frame error.
func hungUp(e *amqp.Error) bool {
	return e.Code == amqp.FrameError && (e.Reason == io.EOF.Error() || strings.HasSuffix(e.Reason, syscall.ECONNRESET.Error()) ||
		strings.HasSuffix(e.Reason, syscall.EPIPE.Error()))
}
