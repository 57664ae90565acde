package reconnect

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/backoff"
)

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

// try makes a session with one address and declares on it what is remembered.
func (l *link) try(to address) (*session, error) {
	o, err := l.dialer.dial(l.ctx, to, l.role)
	if err != nil {
		return nil, dialFailed(to, err)
	}
	s := newSession(o, l.running, l.alarm)
	s.declared.risks, s.declared.creating, s.declared.made = l.risks, l.creating, l.made
	s.declared.apart = func(ctx context.Context, it item) error { return l.declareApart(ctx, s, to, it) }
	s.apart = func(ctx context.Context, f func(*amqp.Channel) error) error { return l.apart(ctx, s, to, f) }
	s.answersElsewhere = func(ctx context.Context) error { return l.answers(ctx, to) }
	// What cannot be declared holds back only those who name it; only a lost connection makes the session useless.
	faults := s.declared.restore(l.ctx, l.own(l.remembered()), l.dialer.cfg.DialTimeout)
	if !s.alive() || l.ctx.Err() != nil {
		defer s.sock.Kill()
		return nil, fmt.Errorf("connection to %s lost while declaring: %w", to.network, s.lossOr(amqp.ErrClosed))
	}
	for _, err := range faults {
		l.log.Error("declaring on a new connection failed", "error", err)
	}
	if len(faults) > 0 {
		s.spawn(func() { l.mend(s) })
	}
	if !o.expires.IsZero() {
		s.spawn(func() { l.refresh(s, o.expires) })
	}
	return s, nil
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

// declareApart declares an item on a connection of its own, which the broker may close because of it.
func (l *link) declareApart(ctx context.Context, s *session, to address, it item) error {
	return l.apart(ctx, s, to, it.declare)
}

// apart runs f on a channel of a connection of its own.
func (l *link) apart(ctx context.Context, s *session, to address, f func(ch *amqp.Channel) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.life, func() { cancel(s.cause()) })()
	o, err := l.dialer.dial(ctx, to, l.role+"/apart")
	if err != nil {
		if ctx.Err() != nil {
			return ended(ctx)
		}
		return fmt.Errorf("no connection to try it on: %v", err) // a refused login says nothing about what is tried
	}
	apart := newSession(o, l.running, func(*session) {})
	defer func() { _ = apart.close(time.Now().Add(time.Second)) }()
	return apart.onChannel(ctx, f)
}

// answers returns nil when the broker at an address takes a new connection, which it closes again.
func (l *link) answers(ctx context.Context, to address) error {
	o, err := l.dialer.dial(ctx, to, l.role+"/apart")
	if err != nil {
		return err
	}
	return newSession(o, l.running, func(*session) {}).close(time.Now().Add(time.Second))
}

// mend asks again, with backoff, for what could not be declared on a new connection and may be possible later: a passive
// entity that is missing, an exclusive queue that the broker still holds for our last connection.
func (l *link) mend(s *session) {
	pause := backoff.NewCounter(backoff.Policy{Min: l.dialer.cfg.BackoffMin, Max: l.dialer.cfg.BackoffMax})
	pause.Next() // that was when the connection was new
	for backoff.Sleep(s.life, pause.Next()) == nil {
		rest := s.declared.mendable(l.own(l.remembered()))
		if len(rest) == 0 {
			return
		}
		if faults := s.declared.restore(s.life, rest, l.dialer.cfg.DialTimeout); len(faults) == 0 {
			l.log.Info("declared what could not be declared before", "entities", len(rest))
		}
	}
}

// alarm makes a change of the broker's blocking known.
func (l *link) alarm(s *session) {
	l.show(s)
	if until, reason := s.blocking(); until != nil {
		l.log.Warn("blocked by the broker", "reason", reason)
		return
	}
	l.log.Info("no longer blocked by the broker")
}
