package reconnect

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/backoff"
	"github.com/warrenmq/warren/internal/telemetry"
)

// Publisher publishes with confirmations, on the publishing link. It is safe for any number of goroutines, which share one
// channel: that is the fast way. It ends with its Conn and needs no closing.
//
// A message that would make the broker close the channel harms no other: the name of an exchange is asked for before the
// first publish to it, a refused name or size is remembered for a while (1 s, doubling to 30 s), and when a channel is
// lost all the same, new messages go on on a fresh one while those in doubt are sent one by one on another, until the
// guilty one is found. The same for one over which the broker ends the whole connection, such as an answer to a forged direct
// reply-to address (541, up to RabbitMQ 4.1): after three or four losses it is ErrUnknown with that error.
//
// A queue that confirms nothing, such as a quorum queue without its majority, holds up messages to others for some ten
// seconds: see PublisherConfig.ConfirmTimeout. In the worst case the broker stops reading from the whole connection because
// of it. Then that is given up, and what was unconfirmed on it is sent again, when nothing but heartbeats has moved for
// 3 s, and for what the unconfirmed bytes take at 64 KiB/s (2 minutes at most), although the broker answers elsewhere; each
// further time takes twice as long, until everything is confirmed again.
type Publisher struct {
	conn *Conn
	cfg  PublisherConfig

	calls, bytes atomic.Int64 // in progress
	timers       sync.Pool    // of *time.Timer, stopped

	lane            // for almost everything
	slow       lane // for stalled destinations
	quarantine quarantine

	asideMu sync.Mutex // is never held while anything waits
	aside   []*confirms
}

// NewPublisher returns a Publisher with a channel of its own, which is opened, as the link is dialed, by the first
// publish; with PublisherConfig.Shared it returns the one that others with equal settings have. It does no I/O.
func (c *Conn) NewPublisher(cfg PublisherConfig) (*Publisher, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("reconnect: publisher: %w", err)
	}
	cfg = cfg.withDefaults()
	if !cfg.Shared {
		return newPublisher(c, cfg), nil
	}
	c.sharedMu.Lock()
	defer c.sharedMu.Unlock()
	p, ok := c.shared[cfg]
	if !ok {
		p = newPublisher(c, cfg)
		c.shared[cfg] = p
	}
	return p, nil
}

// Closing returns a channel that is closed when Close of the Publisher's Conn begins: whatever is published from then on
// fails with ErrClosed. A lost connection is no end. It is the same channel each time, and does not block. Whoever has nothing to
// publish may wait for it, as a relay of package outbox does.
func (p *Publisher) Closing() <-chan struct{} { return p.conn.life.Done() }

func newPublisher(c *Conn, cfg PublisherConfig) *Publisher {
	p := &Publisher{conn: c, cfg: cfg, quarantine: quarantine{turn: make(chan struct{}, 1)},
		timers: sync.Pool{New: func() any {
			t := time.NewTimer(time.Hour)
			t.Stop()
			return t
		}}}
	p.lane.open = func(s *session) (*confirms, error) { return p.openGuarded(s, cfg.Window, p.guard) }
	p.slow.open = func(s *session) (*confirms, error) { return p.openGuarded(s, min(slowWindow, cfg.Window), p.guardSlow) }
	return p
}

// openGuarded opens a channel and has guard watch over it.
func (p *Publisher) openGuarded(s *session, window int, guard func(*confirms)) (*confirms, error) {
	c, err := openConfirms(s, window, p.conn.refused.suspect, p.conn)
	if err == nil && !s.spawn(func() { guard(c) }) {
		return nil, ErrClosed // and the channel with the connection
	}
	return c, err
}

// Publish sends msg to exchange with key and waits for the broker's confirmation. nil means that the broker has it safely:
// every queue it was routed to, of which there was at least one, took it. A MessageId, when there is none, is a UUIDv7,
// the Timestamp is now, the delivery mode persistent; UserId is never set. msg and its headers are not changed, and not
// used after Publish has returned.
//
// While ctx lives (a ctx without deadline gets Timeout) it waits for a link, a place in the window and the end of an
// alarm, and sends the message again, with the same MessageId, when its channel was lost; FailFast does neither. Order
// holds only for a caller that waits for each Publish; PublishBatch is the fast ordered form.
//
// The error, otherwise, tells what became of the message:
//   - *ReturnedError: no queue took it;
//   - ErrRefused: a queue refused it; when the exchange leads to several queues, others may have it;
//   - *amqp.Error with code 403, 404 or 406: the broker closed the channel, or would have, because of this message;
//   - ErrUnknown, joined with the cause: it may have arrived. Also beside another error, when that is about a later
//     attempt;
//   - ErrBlocked, joined with the context's error, or, with FailFast, alone: the broker has an alarm;
//   - *TopologyError: its exchange could not be declared; a permanent error: it is bad input, nothing was sent;
//   - ErrBusy, ErrClosed, the context's error: nothing was sent.
//
// Only with ErrUnknown, and with ErrRefused behind several queues, may sending it again duplicate it.
func (p *Publisher) Publish(ctx context.Context, exchange, key string, msg amqp.Publishing) error {
	// One allocation for both: the message is on the heap in any case.
	call := struct {
		message Message
		tale    telemetry.Publishing
	}{Message{Exchange: exchange, Key: key, Publishing: msg}, p.conn.telemetry.Publish(ctx, exchange, key, msg.Headers)}
	err := p.publish(ctx, &call.message, &call.tale)
	tell(&call.tale, err)
	return err
}

func (p *Publisher) publish(ctx context.Context, m *Message, tale *telemetry.Publishing) error {
	if !p.conn.calls.enter() {
		return m.fail(ErrClosed)
	}
	defer p.conn.calls.leave()
	if ctx.Err() != nil {
		return m.fail(ended(ctx))
	}
	now := time.Now()
	if err := p.validate(m); err != nil {
		slowDown(ctx)
		return m.fail(err)
	}
	p.complete(m, now)
	size := len(m.Body)
	if !p.admit(size) {
		return m.fail(ErrBusy)
	}
	defer p.dismiss(size)
	p.describe(m, tale)
	return p.deliver(ctx, m, p.endOf(ctx, now), tale)
}

// slowDown keeps a caller for a moment whose message failed without having been sent: one that does so in a tight loop
// would take the processor from those who publish.
func slowDown(ctx context.Context) { _ = backoff.Sleep(ctx, time.Millisecond) }

// admit counts a call with so many bytes, or reports that the bounds of what waits are reached.
func (p *Publisher) admit(bytes int) bool {
	p.conn.callers.Add(1)
	calls, sum := p.calls.Add(1), p.bytes.Add(int64(bytes))
	tooMany := p.cfg.MaxWaiting >= 0 && calls > int64(p.cfg.MaxWaiting)
	tooMuch := p.cfg.MaxWaitingBytes >= 0 && bytes > 0 && sum > int64(max(p.cfg.MaxWaitingBytes, bytes))
	if tooMany || tooMuch {
		p.dismiss(bytes)
		return false
	}
	return true
}

func (p *Publisher) dismiss(bytes int) {
	p.conn.callers.Add(-1)
	p.calls.Add(-1)
	p.bytes.Add(-int64(bytes))
}

// endOf is when Timeout ends a call that began now; zero when ctx, or nothing, ends it.
func (p *Publisher) endOf(ctx context.Context, now time.Time) time.Time {
	if _, ok := ctx.Deadline(); ok || p.cfg.Timeout < 0 {
		return time.Time{}
	}
	return now.Add(p.cfg.Timeout)
}

// deliver sends m and sees to its outcome. What a message usually needs is tried without waiting first, since a context
// that holds Timeout costs as much as half of a publish.
func (p *Publisher) deliver(ctx context.Context, m *Message, end time.Time, tale *telemetry.Publishing) error {
	h := history{tale: tale}
	if c := p.ready(m); c != nil {
		f, err := c.trySend(m, !p.cfg.AllowUnroutable)
		if f != nil {
			v := p.conclude(m, c, &h, p.await(ctx, c, f, end, p.cfg.ConfirmTimeout))
			if !v.again {
				return v.err
			}
		} else if err != nil && err != errGone {
			return m.fail(err)
		}
	}
	if !end.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, end, errTooLate("Timeout", p.cfg.Timeout))
		defer cancel()
	}
	return p.deliverWaiting(ctx, m, &h)
}

func (p *Publisher) deliverWaiting(ctx context.Context, m *Message, h *history) error {
	for {
		s, err := p.dispatch(ctx, m, h)
		if s.flight == nil {
			if s.known {
				slowDown(ctx)
			}
			return err
		}
		v := p.conclude(m, s.confirms, h, p.await(ctx, s.confirms, s.flight, time.Time{}, p.cfg.ConfirmTimeout))
		if !v.again {
			return v.err
		}
	}
}

// ready returns the channel on which m may be sent without asking or waiting for anything first, or nil.
func (p *Publisher) ready(m *Message) *confirms {
	c := p.current.Load()
	if c == nil || !c.alive() || m.UserId != "" && m.UserId != c.session.user || c.session.declared.faults.Load() > 0 {
		return nil
	}
	if !p.conn.exchanges.knows(m.Exchange) || !p.conn.refused.none(m) || p.conn.stalls.has(m) {
		return nil
	}
	return c
}
