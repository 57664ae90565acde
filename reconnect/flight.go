package reconnect

import (
	amqp "github.com/rabbitmq/amqp091-go"
)

// flight is a message that was handed to the driver and whose confirmation nobody has dealt with yet.
type flight struct {
	exchange, key, id string
	mark              int64 // of markHeader, 0 without
	size              int
	end               int64                      // of it, in what was written to the connection; under sending
	tick              int                        // of confirms, since when it waits; for look
	read              bool                       // the broker is known to have read it; for look
	confirm           *amqp.DeferredConfirmation // nil: not sent after all; written under sending
	returned          *ReturnedError             // under mu
	next              *flight                    // with the same id
}

// markHeader tells two messages in flight apart that have exchange, key and MessageId in common.
const markHeader = "warren-publish"

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
	*f = flight{exchange: m.Exchange, key: m.Key, id: m.MessageId, size: len(m.Body), tick: c.tick, next: first}
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
	if l == nil {
		c.session.noteRead(f.end)
	}
	if acked {
		c.stalls.confirmed(f.exchange, f.key)
	}
	c.mu.Lock()
	c.drainReturns()
	c.remove(f)
	if acked {
		c.acked = max(c.acked, f.confirm.DeliveryTag)
	}
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
