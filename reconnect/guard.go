package reconnect

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// stallAfter is the constant, or less, down to minStallAfter, where the configuration asks for it.
func (p *Publisher) stallAfter() time.Duration {
	if p.cfg.ConfirmTimeout > 0 {
		return max(minStallAfter, min(stallAfter, p.cfg.ConfirmTimeout/3))
	}
	return stallAfter
}

// guardTicks is how often c is looked at within stallAfter.
const guardTicks = 3

// guard watches over c, a channel of the publisher's own lane, until it is lost. As long as new messages go there it looks
// for stalled destinations; once it stands aside it is closed when nothing is unconfirmed any more.
func (p *Publisher) guard(c *confirms) {
	every := p.stallAfter() / guardTicks
	tick := time.NewTicker(every)
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
		routes, unread := c.stalled(every)
		if len(routes) > 0 {
			p.conn.stalls.note(routes)
			p.setAside(c)
			aside = true
		}
		if (aside || unread) && !c.session.checking.Load() {
			c.session.spawn(func() { c.session.checkRead(&p.conn.stalls, p.conn.publishing.log) })
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

// setAside makes new messages go on another channel than c, once.
func (p *Publisher) setAside(c *confirms) {
	p.current.CompareAndSwap(c, nil)
	close(c.aside)
	p.asideMu.Lock()
	p.aside = slices.DeleteFunc(p.aside, func(other *confirms) bool { return !other.alive() })
	p.aside = append(p.aside, c)
	if len(p.aside) > maxAside { // what is in doubt there is sent again, on the lane for that
		p.aside[0].retire()
		p.aside = p.aside[1:]
	}
	p.asideMu.Unlock()
}

// progress reports whether nothing is unconfirmed on c, and the highest delivery tag that was acknowledged.
func (c *confirms) progress() (through bool, acked uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.flights) == 0, c.acked
}

// stalled is called at regular intervals. It returns the destinations of messages that are overdue and for which there is
// no other reason than their own queue: either messages that were sent later have been confirmed, or there is none that was
// sent earlier. And it reports whether it is time to ask whether the broker reads at all.
func (c *confirms) stalled(every time.Duration) (found []route, unread bool) {
	c.sending.Lock()
	defer c.sending.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tick++
	l := look{tick: c.tick, every: every, sent: c.session.sock.Sent(), read: c.session.read.Load()}
	if l.read != c.read {
		c.read, c.readTick = l.read, c.tick-1
	}
	l.readTick = c.readTick
	var first *flight
	firstOverdue := false
	for _, f := range c.flights {
		for ; f != nil; f = f.next {
			if f.confirm == nil || isDone(f.confirm) {
				continue
			}
			overdue := l.overdue(f)
			if first == nil || f.confirm.DeliveryTag < first.confirm.DeliveryTag {
				first, firstOverdue = f, overdue
			}
			if overdue && f.confirm.DeliveryTag < c.acked {
				found = append(found, route{f.exchange, f.key})
			}
		}
	}
	if firstOverdue {
		found = append(found, route{first.exchange, first.key})
	}
	return found, first != nil && l.unread(first)
}

// look is what is known, at one of guard's looks, about all messages of a channel.
type look struct {
	tick     int           // the number of this look
	every    time.Duration // from one look to the next
	sent     int64         // bytes of the connection that have left our buffer
	read     int64         // those that the broker is known to have read
	readTick int           // when it was not yet known to have read so much
}

// overdue reports whether f has waited for its confirmation for guardTicks whole ticks. They count from when the broker is
// known to have read it; as long as it is not, they count from when f had left our buffer and the last sign that the broker
// reads, and it takes as many more as f may have been on its way since.
func (l *look) overdue(f *flight) bool {
	switch {
	case f.end > l.sent:
		f.tick = l.tick - 1
		return false
	case f.end > l.read: // on its way, for all we know
		return l.tick-max(f.tick, l.readTick) > guardTicks+int(transit(f.end-l.read)/l.every)
	case !f.read:
		f.read, f.tick = true, l.tick-1
	}
	return l.tick-f.tick > guardTicks
}

// unread reports whether f has been on its way for a whole tick in which nothing showed that the broker reads.
func (l *look) unread(f *flight) bool {
	return f.end <= l.sent && f.end > l.read && l.tick-max(f.tick, l.readTick) > 1
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
