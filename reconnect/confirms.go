package reconnect

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"
)

// confirms is one channel in confirm mode, shared by any number of callers, with what is unconfirmed on it. Like its
// session it is never reopened.
//
// A slot is taken before a message is sent and given back when its confirmation was seen, so that returns, whose channel
// has room for all slots, never hold up the connection's reader. Lock order: sending, then mu. Neither is held while
// anything waits: the buffer that the driver writes into never blocks.
type confirms struct {
	session  *session
	ch       *amqp.Channel
	slots    chan struct{}
	returns  chan amqp.Return
	onRefuse func(*loss) // told of a channel error before anybody else is

	dead chan struct{} // closed once the channel is gone and loss is set
	loss *loss

	sending sync.Mutex    // held while a message is handed to the driver
	inLine  atomic.Int32  // callers that wait for room in the buffer
	line    chan struct{} // capacity 1: the first of them

	mu      sync.Mutex
	flights map[string]*flight // unconfirmed, by MessageId; equal ones are chained
	spare   *flight            // for use again, chained
	marks   int64              // the last value of markHeader
	ended   bool
	left    sync.WaitGroup // confirmations whose callers have gone
}

// flight is a message that was handed to the driver and whose confirmation nobody has dealt with yet.
type flight struct {
	exchange, key, id string
	mark              int64 // of markHeader, 0 without
	size              int
	confirm           *amqp.DeferredConfirmation // nil: not sent after all; written under sending
	returned          *ReturnedError             // under mu
	next              *flight                    // with the same id
}

// loss is the end of a channel.
type loss struct {
	why      error       // never nil
	refusal  *amqp.Error // the broker closed the channel because of one of the messages; nil when the connection was lost
	inDoubt  int         // messages without a confirmation
	suspects []suspect   // the same, when there is a refusal
}

// suspect is what may have made the broker close a channel.
type suspect struct {
	exchange, key string
	size          int
}

// errGone says that a channel was lost before a message was sent on it, errAgain that what a message waited for has come.
var (
	errGone  = errors.New("channel lost")
	errAgain = errors.New("again")
)

// openConfirms opens a channel in confirm mode. It blocks until the broker has answered or the connection is lost.
func openConfirms(s *session, window int, onRefuse func(*loss)) (*confirms, error) {
	ch, err := s.conn.Channel()
	if err != nil {
		return nil, s.lossOr(err)
	}
	c := &confirms{session: s, ch: ch, onRefuse: onRefuse, dead: make(chan struct{}), slots: make(chan struct{}, window),
		line: make(chan struct{}, 1), flights: make(map[string]*flight)}
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	c.returns = ch.NotifyReturn(make(chan amqp.Return, window))
	if err := ch.Confirm(false); err != nil {
		_ = ch.Close()
		return nil, s.lossOr(err)
	}
	if !s.spawn(func() { c.watch(closed) }) {
		return nil, ErrClosed // and the channel with the connection
	}
	return c, nil
}

// watch waits for the end of the channel and records it. The driver announces the end before it completes the
// confirmations, so whoever finds one not acknowledged waits for this record before it takes its message out of flights.
func (c *confirms) watch(closed <-chan *amqp.Error) {
	err := <-closed // nil after a close of our own
	c.sending.Lock()
	c.mu.Lock()
	c.ended = true
	c.loss = c.lossBy(err)
	c.mu.Unlock()
	c.sending.Unlock()
	if c.loss.refusal != nil {
		c.onRefuse(c.loss)
	}
	close(c.dead)
	c.left.Wait()
}

// lossBy is called with sending and mu held.
func (c *confirms) lossBy(err *amqp.Error) *loss {
	c.drainReturns()
	l := &loss{why: closeError(err)}
	if isMessageRefusal(err) && !c.session.conn.IsClosed() {
		l.refusal = err
	}
	for _, f := range c.flights {
		for ; f != nil; f = f.next {
			if f.confirm == nil || f.confirm.Acked() || f.returned != nil {
				continue
			}
			l.inDoubt++
			if l.refusal != nil {
				l.suspects = append(l.suspects, suspect{exchange: f.exchange, key: f.key, size: f.size})
			}
		}
	}
	return l
}

// alive reports whether the channel is not known to be gone.
func (c *confirms) alive() bool { return !c.ch.IsClosed() }

// takeSlot waits for a slot of the window.
func (c *confirms) takeSlot(ctx context.Context) error {
	if c.trySlot() {
		return nil
	}
	select {
	case c.slots <- struct{}{}:
		return nil
	case <-c.dead:
		return errGone
	case <-ctx.Done():
		return ended(ctx)
	}
}

func (c *confirms) trySlot() bool {
	select {
	case c.slots <- struct{}{}:
		return true
	default:
		return false
	}
}

func (c *confirms) freeSlot() { <-c.slots }

// trySend sends m if that needs no waiting for a slot, for room in the buffer or for the end of an alarm. It returns nil
// and no error when it does.
func (c *confirms) trySend(m *Message, mandatory bool) (*flight, error) {
	if !c.trySlot() {
		return nil, nil
	}
	if c.inLine.Load() > 0 || !c.lock() {
		c.freeSlot()
		return nil, nil
	}
	f, err := c.handOver(m, mandatory)
	c.sending.Unlock()
	if f == nil {
		c.freeSlot()
	}
	return f, err
}

// send sends m, waiting as long as ctx lets it. Without wait it does not wait for the end of an
// alarm.
func (c *confirms) send(ctx context.Context, m *Message, mandatory, wait bool) (*flight, error) {
	if err := c.takeSlot(ctx); err != nil {
		return nil, err
	}
	f, err := c.sendInSlot(ctx, m, mandatory, wait)
	if f == nil {
		c.freeSlot()
	}
	return f, err
}

func (c *confirms) sendInSlot(ctx context.Context, m *Message, mandatory, wait bool) (*flight, error) {
	c.inLine.Add(1)
	defer c.inLine.Add(-1)
	select {
	case c.line <- struct{}{}:
		defer func() { <-c.line }()
	case <-c.dead:
		return nil, errGone
	case <-ctx.Done():
		return nil, ended(ctx)
	}
	for {
		if err := c.session.passAlarm(ctx, wait); err != nil {
			return nil, err
		}
		if err := c.session.sock.WaitRoom(ctx); err != nil {
			if ctx.Err() != nil {
				return nil, ended(ctx)
			}
			return nil, errGone
		}
		if !c.lock() {
			continue
		}
		f, err := c.handOver(m, mandatory)
		c.sending.Unlock()
		if f != nil || err != nil {
			return f, err
		}
	}
}

// lock takes the lock for sending if there is room in the buffer. The room is looked at under the lock, so that callers
// that were let in together do not exceed it together: what is in the buffer cannot be withdrawn.
func (c *confirms) lock() bool {
	c.sending.Lock()
	if c.session.sock.HasRoom() {
		return true
	}
	c.sending.Unlock()
	return false
}

// handOver hands m to the driver and notes that it is in flight. It returns nil and no error when the broker has begun to
// block publishers. The caller holds sending.
func (c *confirms) handOver(m *Message, mandatory bool) (*flight, error) {
	if until, _ := c.session.blocking(); until != nil {
		return nil, nil
	}
	f := c.enter(m)
	msg := m.Publishing
	if f.mark != 0 {
		msg.Headers = marked(m.Headers, f.mark)
	}
	confirm, err := c.ch.PublishWithDeferredConfirm(m.Exchange, m.Key, mandatory, false, msg)
	if err != nil {
		c.mu.Lock()
		c.remove(f)
		c.mu.Unlock()
		return nil, c.sendError(err)
	}
	f.confirm = confirm
	return f, nil
}

// sendError tells a lost channel from a message that the driver cannot encode. Either way nothing was sent: what is left
// in the driver's buffer then is never a whole message.
func (c *confirms) sendError(err error) error {
	if errors.Is(err, amqp.ErrClosed) || !c.alive() || c.session.sock.Err() != nil {
		return errGone
	}
	return err
}

// markHeader tells two messages in flight apart that have exchange, key and MessageId in common.
const markHeader = "warren-publish"

func marked(headers amqp.Table, mark int64) amqp.Table {
	headers = maps.Clone(headers)
	if headers == nil {
		headers = amqp.Table{}
	}
	headers[markHeader] = mark
	return headers
}

// enter notes that m is in flight, before it is sent, since its return may come at any time after. It gets a mark when a
// message just like it is in flight, or when it carries a mark of an earlier life.
func (c *confirms) enter(m *Message) *flight {
	needsMark := false
	if len(m.Headers) > 0 {
		_, needsMark = m.Headers[markHeader]
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	first := c.flights[m.MessageId]
	for other := first; other != nil && !needsMark; other = other.next {
		needsMark = other.key == m.Key && other.exchange == m.Exchange
	}
	f := c.spare
	if f != nil {
		c.spare = f.next
	} else {
		f = new(flight)
	}
	*f = flight{exchange: m.Exchange, key: m.Key, id: m.MessageId, size: len(m.Body), next: first}
	if needsMark {
		c.marks++
		f.mark = c.marks
	}
	c.flights[f.id] = f
	return f
}

// remove is called with mu held.
func (c *confirms) remove(f *flight) {
	first := c.flights[f.id]
	if first == f {
		if f.next == nil {
			delete(c.flights, f.id)
		} else {
			c.flights[f.id] = f.next
		}
		return
	}
	for at := first; at != nil; at = at.next {
		if at.next == f {
			at.next = f.next
			return
		}
	}
}

// settle says what became of f, whose confirmation is there: a *ReturnedError, ErrRefused, nil for success, or the loss
// of the channel, which leaves it in doubt. It gives f's slot back, and f, which must not be used any more.
//
// A message's return is in the channel of returns before its confirmation fires, but another caller may hold it in hand.
// So the returns are emptied, and marked, under the lock under which each caller then looks at its own.
func (c *confirms) settle(f *flight) (*loss, error) {
	acked := f.confirm.Acked()
	var l *loss
	if !acked && !c.alive() {
		<-c.dead // imminent: see watch
		l = c.loss
	}
	c.mu.Lock()
	c.drainReturns()
	c.remove(f)
	returned := f.returned
	*f = flight{next: c.spare}
	c.spare = f
	c.mu.Unlock()
	c.freeSlot()
	switch {
	case returned != nil:
		return nil, returned
	case acked:
		return nil, nil
	case l != nil:
		return l, nil
	}
	return nil, ErrRefused
}

// abandon sees to f on behalf of a caller who does not wait any longer: its slot is not free before its confirmation has
// come or the channel has ended.
func (c *confirms) abandon(f *flight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return // and with the channel all slots
	}
	c.left.Go(func() {
		<-f.confirm.Done()
		_, _ = c.settle(f)
	})
}

// drainReturns empties the channel of returns and notes each with its message. The caller holds mu.
func (c *confirms) drainReturns() {
	for len(c.returns) > 0 {
		r := <-c.returns
		mark, _ := r.Headers[markHeader].(int64)
		for f := c.flights[r.MessageId]; f != nil; f = f.next {
			if f.mark == mark && f.key == r.RoutingKey && f.exchange == r.Exchange {
				f.returned = &ReturnedError{Exchange: r.Exchange, Key: r.RoutingKey, MessageID: r.MessageId, Code: r.ReplyCode, Text: r.ReplyText}
				break
			}
		}
	}
}

// softCodes are those with which the broker closes a channel and not the connection.
var softCodes = []int{amqp.ContentTooLarge, amqp.AccessRefused, amqp.NotFound, amqp.ResourceLocked, amqp.PreconditionFailed}

// isMessageRefusal reports whether the end of a confirm channel is about a message. One over a delivery tag is not: these
// channels acknowledge nothing.
func isMessageRefusal(err *amqp.Error) bool {
	return err != nil && slices.Contains(softCodes, err.Code) && !mentions(err, "delivery tag")
}
