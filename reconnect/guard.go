package reconnect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// stallAfter is the constant, or less where the configuration asks for it.
func (p *Publisher) stallAfter() time.Duration {
	if p.cfg.ConfirmTimeout > 0 {
		return min(stallAfter, p.cfg.ConfirmTimeout/3)
	}
	return stallAfter
}

// guardTicks is how often c is looked at within stallAfter.
const guardTicks = 3

// guard watches over c, a channel of the publisher's own lane, until it is lost. As long as new messages go there it looks
// for stalled destinations; once it stands aside it is closed when nothing is unconfirmed any more.
func (p *Publisher) guard(c *confirms) {
	tick := time.NewTicker(max(p.stallAfter()/guardTicks, time.Millisecond))
	defer tick.Stop()
	for aside := false; ; {
		select {
		case <-tick.C:
		case <-c.dead:
			return
		}
		if aside {
			if through, _ := c.progress(); through {
				c.retire()
				return
			}
			continue
		}
		if c.session.isBlocked() {
			continue // what waits for the end of an alarm is not stalled
		}
		if routes := c.stalled(); len(routes) > 0 {
			p.conn.stalls.note(routes)
			p.setAside(c)
			aside = true
		}
	}
}

// guardSlow closes c, the channel for stalled destinations, when it has not been needed for a while.
func (p *Publisher) guardSlow(c *confirms) {
	tick := time.NewTicker(linger)
	defer tick.Stop()
	for last := uint64(0); ; {
		select {
		case <-tick.C:
		case <-c.dead:
			return
		}
		through, acked := c.progress()
		idle := through && acked == last
		if last = acked; idle {
			p.slow.current.CompareAndSwap(c, nil)
			c.retire()
			return
		}
	}
}

// setAside makes new messages go on another channel than c.
func (p *Publisher) setAside(c *confirms) {
	p.current.CompareAndSwap(c, nil)
	p.asideMu.Lock()
	p.aside = slices.DeleteFunc(p.aside, func(other *confirms) bool { return !other.alive() })
	p.aside = append(p.aside, c)
	if len(p.aside) > maxAside { // what is in doubt there is sent again, on the lane for that
		p.aside[0].retire()
		p.aside = p.aside[1:]
	}
	p.asideMu.Unlock()
	c.session.spawn(func() { c.session.checkRead(p.stallAfter(), p.conn.publishing.log) })
}

// progress reports whether nothing is unconfirmed on c, and the highest delivery tag that was acknowledged.
func (c *confirms) progress() (through bool, acked uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.flights) == 0, c.acked
}

// stalled is called at regular intervals. It returns the destinations of messages that have waited for guardTicks whole
// ones of them, and for which there is no other reason than their own queue: either messages that were sent later have
// been confirmed, or there is none that was sent earlier.
func (c *confirms) stalled() []route {
	c.sending.Lock()
	defer c.sending.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tick++
	var first *flight
	var found []route
	for _, f := range c.flights {
		for ; f != nil; f = f.next {
			if f.confirm == nil || c.tick-f.tick <= guardTicks || isDone(f.confirm) {
				continue
			}
			if first == nil || f.confirm.DeliveryTag < first.confirm.DeliveryTag {
				first = f
			}
			if f.confirm.DeliveryTag < c.acked {
				found = append(found, route{f.exchange, f.key})
			}
		}
	}
	if first != nil {
		found = append(found, route{first.exchange, first.key})
	}
	return found
}

// errUnread is why a session ends from which the broker does not read.
var errUnread = errors.New("the broker, which answers elsewhere, does not read from this connection any more")

// checkRead finds out whether the broker still reads from s, and ends s when it does not within the given time although it
// answers on a new connection. A broker that answers nowhere is left to the heartbeats.
func (s *session) checkRead(within time.Duration, log *slog.Logger) {
	if s.checking.Swap(true) {
		return
	}
	defer s.checking.Store(false)
	ctx, cancel := context.WithCancel(s.life)
	defer cancel()
	answered := make(chan struct{})
	if !s.spawn(func() {
		defer close(answered)
		_ = s.onChannel(ctx, func(*amqp.Channel) error { return nil })
	}) {
		return
	}
	late := time.NewTimer(within)
	defer late.Stop()
	select {
	case <-answered:
		return
	case <-late.C:
	}
	if s.isBlocked() || s.answersElsewhere == nil || s.answersElsewhere(s.life) != nil || s.isBlocked() {
		return
	}
	select {
	case <-answered: // after all
		return
	default:
	}
	log.Warn("giving the connection up", "error", errUnread)
	s.end(errUnread)
	s.sock.Kill()
}

func (s *session) isBlocked() bool {
	until, _ := s.blocking()
	return until != nil
}

// sendSlowly sends m, which goes to a stalled destination, on the lane for those. It waits no longer for its turn than for
// a confirmation.
func (p *Publisher) sendSlowly(ctx context.Context, s *session, m *Message) (sent, error) {
	bounded := ctx
	if p.cfg.ConfirmTimeout > 0 {
		var cancel context.CancelFunc
		bounded, cancel = context.WithTimeoutCause(ctx, p.cfg.ConfirmTimeout, errTooLate("ConfirmTimeout", p.cfg.ConfirmTimeout))
		defer cancel()
	}
	var f *flight
	c, err := p.slow.channel(bounded, s)
	if err == nil {
		f, err = c.send(bounded, m, !p.cfg.AllowUnroutable, !p.cfg.FailFast)
	}
	if err != nil && ctx.Err() == nil && bounded.Err() != nil {
		err = fmt.Errorf("a queue behind it confirms nothing: %w", err)
	}
	return sent{confirms: c, flight: f}, err
}
