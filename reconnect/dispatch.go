package reconnect

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/backoff"
	"github.com/warrenmq/warren/internal/wire"
)

// sent is a message on its way.
type sent struct {
	confirms *confirms
	flight   *flight // nil: its outcome is known already
	known    bool    // it failed without having been sent, over something that is known about it
	over     error   // why nothing that must not overtake it may be sent; nil when there is nothing against that
}

// dispatch sends m as soon as that can be done, waiting for what it needs as long as ctx lets it. What has to go aside it
// sees through to the end: then it returns the outcome and no flight. Its errors are what the caller of Publish is told.
func (p *Publisher) dispatch(ctx context.Context, m *Message, h *history) (sent, error) {
	var pause pause
	for {
		s, err := p.session(ctx)
		if err != nil {
			return sent{over: err}, m.notSent(ctx, nil, h, err)
		}
		way, err := p.clear(ctx, s, m)
		switch {
		case err != nil:
		case way.aside || h.refused != nil || h.ended > 0:
			var v verdict
			if v, err = p.sendAside(ctx, s, m, h, way); v.again {
				continue
			} else if err == nil {
				return sent{over: v.over}, v.err
			}
		default:
			send := p.sendOn
			if p.conn.stalls.has(m) {
				send = p.sendSlowly
			}
			var out sent
			if out, err = send(ctx, s, m); err == nil {
				return out, nil
			}
		}
		if err = pause.after(ctx, s, err, p.cfg.FailFast); err != nil {
			out := sent{known: isOwn(err)}
			if !out.known {
				out.over = err
			}
			return out, m.notSent(ctx, s, h, err)
		}
	}
}

// isOwn reports whether err, which kept a message from being sent, is about that message or its destination.
func isOwn(err error) bool {
	var refusal *amqp.Error
	var opening openingError
	if errors.As(err, &opening) {
		return false
	}
	return isPermanent(err) || errors.As(err, &refusal) && refusal.Server
}

// session returns the session to publish on.
func (p *Publisher) session(ctx context.Context) (*session, error) {
	if p.cfg.FailFast {
		return p.conn.publishing.now()
	}
	return p.conn.publishing.session(ctx, false)
}

// clear makes sure that m may be sent on s, as far as can be known.
func (p *Publisher) clear(ctx context.Context, s *session, m *Message) (passage, error) {
	if m.UserId != "" && s.user != "" && m.UserId != s.user {
		if err := wire.Publishing(m.Exchange, m.Key, &m.Publishing, wire.Limits{MaxBody: -1, User: s.user}); err != nil {
			return passage{}, err
		}
	}
	if err := s.passAlarm(ctx, !p.cfg.FailFast); err != nil {
		return passage{}, err
	}
	if err := s.declared.publishable(ctx, m.Exchange, m.Key); err != nil {
		if !s.alive() && ctx.Err() == nil {
			err = errGone
		}
		return passage{}, err
	}
	way, err := p.conn.refused.admit(ctx, m, !p.cfg.FailFast)
	if err != nil || way.aside || p.conn.exchanges.knows(m.Exchange) {
		return way, err
	}
	return passage{}, p.conn.exchanges.ask(ctx, s, m.Exchange, &p.conn.refused)
}

// openingError is a failure to open a channel on a living connection, such as that it has no more: a reason to try again.
type openingError struct{ error }

func (e openingError) Unwrap() error { return e.error }

func (e openingError) Error() string { return "open channel: " + e.error.Error() }

// sendOn sends m on the publisher's channel of s.
func (p *Publisher) sendOn(ctx context.Context, s *session, m *Message) (sent, error) {
	c, err := p.channel(ctx, s)
	if err != nil {
		return sent{}, err
	}
	f, err := c.send(ctx, m, !p.cfg.AllowUnroutable, !p.cfg.FailFast)
	return sent{confirms: c, flight: f}, err
}

// pause decides, for one message, whether what kept it from being sent is a reason to try again.
type pause struct{ times int }

// after returns nil when it is time to try again, otherwise the error to end with.
func (n *pause) after(ctx context.Context, s *session, err error, failFast bool) error {
	var opening openingError
	switch {
	case errors.Is(err, errAgain):
		return nil
	case !errors.Is(err, errGone) && !errors.As(err, &opening):
		return err
	case !s.alive() || s.sock.Err() != nil:
		select { // what is dying must not be tried again before it is dead
		case <-s.lost():
			return nil
		case <-ctx.Done():
			return ended(ctx)
		}
	case failFast && n.times > 0:
		return err
	}
	delay := backoff.Policy{Min: 10 * time.Millisecond, Max: time.Second}.Delay(n.times)
	n.times++
	if backoff.Sleep(ctx, delay) != nil {
		return fmt.Errorf("%w; last error: %w", ended(ctx), err)
	}
	return nil
}
