package retry

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/prefix"
	"github.com/warrenmq/warren/internal/wire"
)

// Later sends msg into the Retrier's queue, to arrive there after the policy's shortest delay that is not shorter than d
// (with DelayedPlugin after d itself), never earlier. It returns nil when the broker has the message safely, and
// otherwise the errors of reconnect.Publisher.Publish; it blocks no longer than that. A d above the longest delay is a
// permanent error, as is a message that could not wait: with an Expiration, which would end the delay, or with CC or BCC
// headers, which would send copies at once. The queue must exist when the delay ends. Where it is read through a Retrier,
// the message is on its first attempt, with the default exchange and the queue's name as its exchange and key, and its own
// priority; anywhere else with a priority of 4 at most.
func (r *Retrier) Later(ctx context.Context, msg amqp.Publishing, d time.Duration) error {
	delay, err := r.delayable(&msg, d)
	if err != nil {
		return fmt.Errorf("retry: later into queue %q: %w", r.queue, Permanent(err))
	}
	msg.Headers = with(with(foreign(msg.Headers), exchangeHeader, ""), keyHeader, r.queue)
	if msg.MessageId == "" {
		msg.MessageId = newID() // also if it is sent twice
	}
	c := copied{exchange: r.policy.DeadLetterExchange, msg: msg}
	r.address(&c, delay)
	if err := r.send(ctx, c); err != nil {
		return prefix.Wrap(fmt.Sprintf("retry: later into queue %q", r.queue), err)
	}
	return nil
}

// delayable returns the delay for msg, or all that is wrong with it.
func (r *Retrier) delayable(msg *amqp.Publishing, d time.Duration) (time.Duration, error) {
	var faults []error
	delay, enough := r.policy.atLeast(max(d, time.Millisecond))
	switch {
	case delay == 0:
		faults = append(faults, errors.New("d: the policy has no delays"))
	case !enough:
		faults = append(faults, fmt.Errorf("d: %v is longer than the longest delay, %v", d, delay))
	}
	if msg.Expiration != "" {
		faults = append(faults, errors.New("Expiration: would end the delay"))
	}
	for _, name := range []string{"CC", "BCC"} {
		if _, ok := msg.Headers[name]; ok {
			faults = append(faults, fmt.Errorf("Headers: %s: would send copies at once", name))
		}
	}
	if _, ok := msg.Headers[delayHeader]; ok && r.policy.DelayedPlugin {
		faults = append(faults, fmt.Errorf("Headers: %s: is set by d", delayHeader))
	}
	faults = append(faults, wire.Publishing("", r.queue, msg, wire.Limits{MaxBody: r.conn.Config().MaxBody}))
	return delay, errors.Join(faults...)
}
