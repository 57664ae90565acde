package reconnect

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/warrenmq/warren/internal/leave"
)

// quarantine is the channel for messages that may make the broker close it: those in doubt after a channel was closed over
// one of them, and those that are tried after a refusal. One is in flight at a time, so that the guilty one is known.
type quarantine struct {
	turn    chan struct{} // capacity 1; who is in owns the rest
	current *confirms
	idle    *time.Timer
}

// sendAside sends m on the quarantine channel and judges its outcome. err says why it was not sent.
func (p *Publisher) sendAside(ctx context.Context, s *session, m *Message, h *history, way passage) (v verdict, err error) {
	taken := false
	defer func() { p.conn.refused.end(way, taken) }() // after a new refusal was noted: others wait for this
	if err := p.quarantine.enter(ctx, s); err != nil {
		return verdict{}, err
	}
	defer p.quarantine.leave()
	c, err := p.quarantineChannel(ctx, s)
	if err != nil {
		return verdict{}, err
	}
	f, err := c.send(ctx, m, !p.cfg.AllowUnroutable, !p.cfg.FailFast)
	if err != nil {
		return verdict{}, err
	}
	o := p.await(leave.Whole(ctx), c, f, time.Time{}, p.cfg.ConfirmTimeout)
	if o.late != nil { // its slot is not free, and the next message must not wait for it
		p.quarantine.drop()
	}
	if taken = o.late == nil && o.loss == nil; taken {
		p.conn.exchanges.learn(m.Exchange)
	}
	return p.conclude(m, c, h, o), nil
}

func (q *quarantine) enter(ctx context.Context, s *session) error {
	select {
	case q.turn <- struct{}{}:
		return nil
	case <-s.lost():
		return errGone
	case <-ctx.Done():
		return ended(ctx)
	}
}

// linger is how long the channel is kept for the next message.
const linger = time.Second

// leave gives the turn to the next one, and the channel up when there is none for a while.
func (q *quarantine) leave() {
	if q.idle == nil {
		q.idle = time.AfterFunc(linger, q.giveUp)
	} else {
		q.idle.Reset(linger)
	}
	<-q.turn
}

// giveUp closes the channel unless somebody uses it.
func (q *quarantine) giveUp() {
	select {
	case q.turn <- struct{}{}:
		q.drop()
		<-q.turn
	default:
	}
}

// drop closes the channel without waiting for that.
func (q *quarantine) drop() {
	if q.current != nil {
		q.current.retire()
		q.current = nil
	}
}

// quarantineChannel is called by who has the turn.
func (p *Publisher) quarantineChannel(ctx context.Context, s *session) (*confirms, error) {
	q := &p.quarantine
	if c := q.current; c != nil && c.session == s && c.alive() {
		return c, nil
	}
	q.drop()
	var opened *confirms
	var met atomic.Bool // set by the opener and by a caller who gives up: the second of them sees to the channel
	err := s.do(ctx, func(context.Context) error {
		c, err := openConfirms(s, 1, func(*loss) {}, p.conn)
		if err != nil {
			return openingError{err}
		}
		opened = c
		if met.Swap(true) {
			c.retire()
		}
		return nil
	})
	if err != nil && !met.Swap(true) {
		return nil, err
	}
	q.current = opened
	return opened, nil
}

// retire closes the channel in the background.
func (c *confirms) retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		c.left.Go(func() { _ = c.ch.Close() })
	}
}
