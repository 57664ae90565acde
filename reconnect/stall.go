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
)

// A quorum queue without its majority neither confirms nor refuses, and it harms others:
//
//   - what is unconfirmed keeps its slots of the window;
//   - the broker stops granting credit to a channel with 32 messages in such a queue, and after 400 more, to whatever
//     queue, it stops reading from the connection, without a word;
//   - the first message from a new channel holds up all others of that channel for a minute.
//
// So a destination that confirms nothing any more is stalled: messages to it go on a lane of their own, with few in
// flight, until one is confirmed again. The channel on which that showed is set aside, which means that it keeps what is
// unconfirmed and gets nothing new. A connection from which the broker does not read any more is given up.

const (
	// stallAfter is how long a message must have waited for its confirmation for its destination to count as stalled, far
	// longer than anything takes that works; and then how long the broker may take to show that it still reads. With a
	// short ConfirmTimeout it is a third of that, so that messages to other destinations are not in doubt by then.
	stallAfter = 3 * time.Second
	// slowWindow is the window of the lane for stalled destinations: less than the 32 over which a channel loses credit.
	slowWindow = 16
	// wholeExchange is the number of stalled keys from which on all of an exchange is taken for stalled.
	wholeExchange = 8
	maxStalls     = 1000
	// maxAside is how many channels of a Publisher may stand aside.
	maxAside = 4
)

// route is where a message is sent.
type route struct{ exchange, key string }

// stalls knows the stalled destinations, for all publishers of a Conn.
type stalls struct {
	log *slog.Logger
	any atomic.Bool // so that a publish does not take the lock

	mu    sync.RWMutex
	since map[route]time.Time
	keys  map[string]int // of an exchange, that are stalled
}

// has reports whether m goes to a stalled destination.
func (s *stalls) has(m *Message) bool {
	if !s.any.Load() {
		return false
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	_, stalled := s.since[route{m.Exchange, m.Key}]
	return stalled || m.Exchange != "" && s.keys[m.Exchange] >= wholeExchange
}

// note takes in destinations that do not confirm.
func (s *stalls) note(routes []route) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range routes {
		if _, known := s.since[r]; known || len(s.since) >= maxStalls {
			continue
		}
		if s.since == nil {
			s.since, s.keys = make(map[route]time.Time), make(map[string]int)
		}
		s.since[r] = time.Now()
		s.keys[r.exchange]++
		s.log.Warn("no confirmations: a queue behind it does not answer", "exchange", r.exchange, "key", r.key)
	}
	s.any.Store(len(s.since) > 0)
}

// confirmed takes in that a message was confirmed.
func (s *stalls) confirmed(exchange, key string) {
	if !s.any.Load() {
		return
	}
	r := route{exchange, key}
	s.mu.RLock()
	since, known := s.since[r]
	s.mu.RUnlock()
	if !known {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known = s.since[r]; !known { // another one was faster
		return
	}
	delete(s.since, r)
	if s.keys[exchange]--; s.keys[exchange] == 0 {
		delete(s.keys, exchange)
	}
	s.any.Store(len(s.since) > 0)
	s.log.Info("confirmed again", "exchange", exchange, "key", key, "after", time.Since(since))
}

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
		switch until, _ := c.session.blocking(); {
		case aside && c.empty():
			c.retire()
			return
		case aside || until != nil: // what waits for the end of an alarm is not stalled
			continue
		}
		if routes := c.stalled(); len(routes) > 0 {
			p.conn.stalls.note(routes)
			p.setAside(c)
			aside = true
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

// empty reports whether nothing is unconfirmed on c.
func (c *confirms) empty() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.flights) == 0
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
