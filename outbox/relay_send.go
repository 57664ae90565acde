package outbox

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/warrenmq/warren/internal/backoff"
	"github.com/warrenmq/warren/internal/leave"
	"github.com/warrenmq/warren/reconnect"
)

// outageBackoff is how often a row is sent, alone, to find out whether an outage is over.
var outageBackoff = backoff.Policy{Min: 100 * time.Millisecond, Max: 5 * time.Second}

const (
	// trustInterval is how often it is looked whether the lead is sure again.
	trustInterval = 10 * time.Millisecond
)

// send publishes chunks, one after the other, until there are no more. It returns an error only when nothing can ever be sent
// again. When lead ends, what the publisher has sent is waited for, but nothing more is sent.
func (t *term) send(lead context.Context) error {
	for chunk := range t.chunks {
		t.progress.begin()
		err := t.sendChunk(lead, chunk)
		t.progress.end()
		if err != nil {
			return err
		}
	}
	return nil
}

// sendChunk publishes until every row has its verdict. What is in doubt is sent again before anything behind it: so first
// arrivals keep their order. After an outage one row goes ahead: as long as it fails, the others are not sent for nothing.
func (t *term) sendChunk(lead context.Context, rows []*outgoing) error {
	if first := rows[0].createdAt; !first.IsZero() {
		t.figures.oldest.Store(first.UnixMicro())
	}
	defer t.figures.oldest.Store(0)
	rows = t.sortOut(rows)
	for outage := 0; len(rows) > 0; {
		next := rows
		if outage > 0 {
			next = rows[:1]
		}
		t.done.wait(t.sending, t.relay.cfg.Batch-len(next)) // no more than a Batch is out
		if !t.mayBegin(lead) {
			return nil
		}
		left, err := t.publish(lead, next, inDoubt(rows[len(next):]))
		rows = append(left, rows[len(next):]...)
		if errors.Is(err, reconnect.ErrClosed) {
			return err
		}
		if err == nil {
			if outage > 0 {
				t.log.Info("outbox: sends again")
			}
			outage = 0
			continue
		}
		if outage == 0 && lead.Err() == nil {
			t.log.Warn("outbox: cannot send", "rows", len(rows), "error", err)
		}
		outage++
		if backoff.Sleep(lead, outageBackoff.Delay(outage)) != nil {
			return nil
		}
	}
	return nil
}

// sortOut parks the rows of which no message can be made.
func (t *term) sortOut(rows []*outgoing) []*outgoing {
	good := make([]*outgoing, 0, len(rows))
	r := &result{term: t}
	for _, o := range rows {
		if o.fault != nil {
			r.parked = append(r.parked, failure{outgoing: o, reason: o.fault})
			continue
		}
		good = append(good, o)
	}
	t.settle(r)
	return good
}

// mayBegin waits until the lead is sure. It is not when a process was stopped for a while: then somebody else may lead.
func (t *term) mayBegin(lead context.Context) bool {
	for lead.Err() == nil && !t.office.trusted() {
		_ = backoff.Sleep(lead, trustInterval)
	}
	return lead.Err() == nil
}

// inDoubt counts the rows of which nobody knows whether they have arrived.
func inDoubt(rows []*outgoing) (n int64) {
	for _, o := range rows {
		if o.inDoubt {
			n++
		}
	}
	return n
}

// publish sends rows as long as lead goes on, hands what is settled to the completer, and returns the rows that have to be
// sent again, with the reason of the first. So many rows behind them, doubtful, are in doubt meanwhile.
func (t *term) publish(lead context.Context, rows []*outgoing, doubtful int64) ([]*outgoing, error) {
	msgs := make([]reconnect.Message, len(rows))
	for i, o := range rows {
		msgs[i] = o.message
	}
	t.figures.unconfirmed.Store(doubtful + int64(len(rows)))
	start := time.Now()
	verdicts, reasons := judge(len(rows), t.publishBatch(lead, msgs))
	t.relay.metrics.published(t.lane, time.Since(start))

	r := &result{term: t}
	var left []*outgoing
	var why error
	for i, o := range rows {
		switch verdicts[i] {
		case sent:
			r.sent = append(r.sent, o)
		case open:
			left = append(left, o)
			o.inDoubt = o.inDoubt || errors.Is(reasons[i], reconnect.ErrUnknown) // one that is not sent again stays so
			if why == nil {
				why = reasons[i]
			}
		default:
			r.fail(o, verdicts[i], reasons[i])
		}
	}
	t.figures.unconfirmed.Store(doubtful + inDoubt(left))
	t.relay.metrics.count(t.lane, "sent", len(r.sent))
	t.relay.metrics.count(t.lane, "open", len(left))
	t.settle(r)
	return left, why
}

// publishBatch calls the publisher. A panic becomes an error: one of the message when it was alone, else one that has them
// sent again, the first one alone, until the guilty one is found.
func (t *term) publishBatch(lead context.Context, msgs []reconnect.Message) (err error) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		err = fmt.Errorf("publisher panicked: %v", v)
		t.log.Error("outbox: the publisher panicked", "panic", v, "stack", string(debug.Stack()))
		if len(msgs) == 1 {
			err = reconnect.BatchError{err}
		}
	}()
	return t.relay.pub.PublishBatch(leave.With(t.sending, lead), msgs)
}

// settle hands r to the completer, which deletes it while the next rows are sent.
func (t *term) settle(r *result) {
	if !r.empty() {
		t.done.add(r)
	}
}
