package reconnect

import (
	"context"
	"errors"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/report"
)

// sender is the report.Sender of a run of a supervised function: what a Publisher looks at before each message, for
// somebody who publishes by hand.
type sender struct {
	conn    *Conn
	session *session
}

var _ report.Sender = (*sender)(nil)

// Free reports whether nothing is to be waited for or asked first.
func (d *sender) Free(exchange, key string, body []byte) bool {
	if d.session.isBlocked() || !d.session.sock.HasRoom() || !d.conn.exchanges.knows(exchange) {
		return false
	}
	m := messageTo(exchange, key, body)
	return d.conn.refused.none(&m)
}

// Wait waits until Free would be true, except that what was refused longer ago may be tried again.
func (d *sender) Wait(ctx context.Context, exchange, key string, body []byte) error {
	m := messageTo(exchange, key, body)
	var again pause
	for d.session.alive() {
		err := d.pass(ctx, &m)
		if err == nil {
			return nil
		}
		if err = again.after(ctx, d.session, err, false); err == nil {
			continue
		}
		if ctx.Err() != nil {
			return errors.Join(d.session.orBlocked(err)...)
		}
		if d.session.alive() {
			return err
		}
	}
	return report.ErrGone
}

func (d *sender) pass(ctx context.Context, m *Message) error {
	if err := d.session.passAlarm(ctx, true); err != nil {
		return err
	}
	if err := d.session.sock.WaitRoom(ctx); err != nil {
		if ctx.Err() != nil {
			return ended(ctx)
		}
		return errGone
	}
	if err := d.conn.refused.standing(m); err != nil {
		return err
	}
	if d.conn.exchanges.knows(m.Exchange) {
		return nil
	}
	return d.conn.exchanges.ask(ctx, d.session, m.Exchange, new(refusals)) // whoever asks sees to how often
}

// Refused notes it for all who publish on this Conn; that an exchange is missing only so that it is asked for again.
func (d *sender) Refused(exchange, key string, body []byte, err *amqp.Error) {
	if err.Code == amqp.NotFound {
		d.conn.exchanges.forget(exchange)
		return
	}
	d.conn.refused.refuse(exchange, key, len(body), err)
}

// Apart dials anew, to the broker that the function's own connection leads to.
func (d *sender) Apart(ctx context.Context, fn func(ch *amqp.Channel) error) error {
	return d.session.apart(ctx, fn)
}

func messageTo(exchange, key string, body []byte) Message {
	return Message{Exchange: exchange, Key: key, Publishing: amqp.Publishing{Body: body}}
}
