package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/warrenmq/warren/internal/backoff"
)

// lane is a relay's part in one lane: it stands by, leads, loses the lead with its session, and stands by again.
//
// While it leads, three goroutines hand rows on: the fetcher reads them, the sender publishes them, and the completer
// deletes them. The completer outlives a loss of the lead: to delete what was confirmed is right whoever leads.
type lane struct {
	relay    *Relay
	n        int
	me       uuid.UUID // by which a lease names its owner
	sql      statementsOfLane
	log      *slog.Logger
	inFlight *inFlight
	done     *completer
	wake     *wakeup

	// failures is set when a row's failure was noted: then its next attempt is to be planned for.
	failures atomic.Bool

	// quit ends Run's context, with the reason, when nothing can ever be sent again.
	quit func(error)
	// grace ends ShutdownTimeout after the context of Run has.
	grace context.Context

	archived time.Time // when the days of the archive were looked after; the fetcher's

	figures    laneFigures
	attributes metric.MeasurementOption
}

func newLane(r *Relay, n int, quit func(error)) *lane {
	l := &lane{
		relay: r, n: n, me: uuid.New(), quit: quit,
		sql:      newStatementsOfLane(r.outbox.tables, n, r.outbox.cfg.Archive),
		log:      r.log.With("table", r.outbox.cfg.Table, "lane", n),
		inFlight: newInFlight(),
	}
	l.done = newCompleter(l)
	l.attributes = metric.WithAttributeSet(attribute.NewSet(keyTable.String(r.outbox.cfg.Table), keyLane.Int(n)))
	return l
}

// run returns when ctx has ended: nil, or how much was left open then.
func (l *lane) run(ctx context.Context) error {
	l.wake = l.relay.outbox.wake.subscribe()
	defer l.wake.close()
	defer l.relay.metrics.add(l)()
	grace, release := graceAfter(ctx, l.relay.cfg.ShutdownTimeout)
	defer release()
	l.grace = grace
	stopped := l.done.start(grace)
	defer stopped()

	for lost := 0; ctx.Err() == nil; {
		start := time.Now()
		led, err := l.serve(ctx)
		if time.Since(start) > steady {
			lost = 0
		}
		switch {
		case ctx.Err() != nil:
		case led:
			l.log.Warn("outbox: no longer leads the lane", "error", err)
		case lost == 0:
			l.log.Warn("outbox: cannot work with the database", "error", err)
		}
		lost++
		_ = backoff.Sleep(ctx, dbBackoff.Delay(lost))
	}
	l.done.wait(grace, 0)
	if unconfirmed, undeleted := l.figures.unconfirmed.Load(), l.done.rows(); unconfirmed > 0 || undeleted > 0 {
		return fmt.Errorf("lane %d: stopped with %d messages not confirmed and %d not deleted: they are sent again",
			l.n, unconfirmed, undeleted)
	}
	return nil
}

// steady is after how long the next loss of the database is taken for a new one.
const steady = 10 * time.Second

// serve stands by until this relay leads the lane, and leads it until the lead is lost or ctx ends. It reports whether it
// has led, and how that ended.
func (l *lane) serve(ctx context.Context) (led bool, err error) {
	o, err := l.seek(ctx)
	if err != nil {
		return false, err
	}
	l.log.Info("outbox: leads the lane")
	t := newTerm(l, o)
	l.relay.leads(l, true)
	defer l.relay.leads(l, false)
	return true, t.run(ctx)
}

// seek takes part in the election until this relay leads.
func (l *lane) seek(ctx context.Context) (office, error) {
	var o office
	if l.relay.cfg.Lease > 0 {
		o = &leaseRow{lane: l}
	} else {
		o = &sessionLock{lane: l}
	}
	for {
		won, err := o.take(ctx)
		if err == nil && !won {
			err = backoff.Sleep(ctx, min(l.relay.cfg.PollInterval, probeInterval)) // a silent session would be ended
		}
		if err != nil {
			o.resign()
			return nil, err
		}
		if won {
			return o, nil
		}
	}
}

// graceAfter returns a context that ends d after ctx has, or never when d is negative.
func graceAfter(ctx context.Context, d time.Duration) (context.Context, func()) {
	grace, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	over := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-ctx.Done():
		case <-over:
			return
		}
		if d < 0 {
			return
		}
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			cancel(errGrace)
		case <-over:
		}
	}()
	return grace, func() {
		close(over)
		<-ended
		cancel(nil)
	}
}

var errGrace = errors.New("outbox: RelayConfig.ShutdownTimeout has passed")
