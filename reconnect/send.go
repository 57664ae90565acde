package reconnect

import (
	"context"
	"errors"

	amqp "github.com/rabbitmq/amqp091-go"
)

// takeSlot waits for a slot of the window. Its error is errAgain when there is another channel for that now.
func (c *confirms) takeSlot(ctx context.Context) error {
	if c.trySlot() {
		return nil
	}
	select {
	case c.slots <- struct{}{}:
		return nil
	case <-c.aside:
		return errAgain
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

// send sends m, waiting as long as ctx lets it. Without wait it does not wait for the end of an alarm.
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
	case <-c.aside:
		return nil, errAgain
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
	if c.session.isBlocked() {
		return nil, nil
	}
	f := c.enter(m)
	msg := m.Publishing
	if f.mark != 0 {
		msg.Headers = with(m.Headers, markHeader, f.mark)
	}
	confirm, err := c.ch.PublishWithDeferredConfirm(m.Exchange, m.Key, mandatory, false, msg)
	if err != nil {
		c.mu.Lock()
		c.remove(f)
		c.mu.Unlock()
		return nil, c.sendError(err)
	}
	f.confirm, f.end = confirm, c.session.sock.Written()
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
