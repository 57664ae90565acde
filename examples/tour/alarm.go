package main

import (
	"context"
	"errors"
	"sync"
	"time"
)

func (o *troubles) alarm(ctx context.Context) error {
	const backlog, takes, batch = 100, 20 * time.Millisecond, 100
	o.step("The broker runs out of memory")
	o.say("It raises an alarm then, and reads nothing more from whoever publishes. Acknowledgements travel on a connection")
	o.say("of their own, so the worker goes on. %d parcels wait for it when the alarm comes.", backlog)
	return o.crew(ctx, takes, func(ctx context.Context) error {
		t, waiting := o.desk.sendBatch(ctx, o.producer, backlog, 10*time.Second)
		if err := errors.Join(t.errs...); err != nil {
			return err
		}
		before := o.ledger.of(waiting)
		if err := o.node.Alarm(ctx, true); err != nil {
			return err
		}
		end := sync.OnceValue(func() error { return o.node.Alarm(context.WithoutCancel(ctx), false) })
		patient := make(chan tally, 1)
		err := o.alarmed(ctx, batch, waiting, before, patient)
		if err = errors.Join(err, end()); err != nil {
			return err
		}
		return o.relieved(ctx, patient)
	})
}

// alarmed publishes under the alarm. What became of the patient callers is told through patient.
func (o *troubles) alarmed(ctx context.Context, batch int, waiting []int, before int, patient chan<- tally) error {
	o.say("\nThe broker tells a connection of the alarm when it publishes next. A batch of %d, with a context of %v:", batch, hurry)
	t, _ := o.desk.sendBatch(ctx, o.producer, batch, hurry)
	inDoubt := t.of(doubtful) + t.of(unknown) // with ErrBlocked, too, unless the notice takes longer than the call
	o.between("written: ErrUnknown with ErrBlocked", inDoubt, 1, batch)
	// The first one may still get through, and where the notice is faster than the batch, the rest is not written.
	o.between("or not written: ErrBlocked", t.of(blocked), 0, batch-1)
	o.figure("or nil", t.of(confirmed), batch-inDoubt-t.of(blocked))
	o.milliseconds("   the call, in ms", t.longest, hurry, hurry+slack)
	o.quote(t, doubtful)

	if err := o.becomes(ctx, "publishing", "blocked"); err != nil {
		return err
	}
	o.say("\nFrom now on it is known, and nothing is written any more:")
	link := o.state("publishing")
	o.text("state of the publishing link", link.Phase, "blocked")
	o.say("              reason: %q", link.Reason)
	o.text("state of the consuming link", o.state("consuming").Phase, "connected")
	hurried := o.desk.sendMany(ctx, o.producer, callers, hurry)
	o.figure("in a hurry: ErrBlocked, not sent", hurried.of(blocked), callers)
	o.milliseconds("   the longest call, in ms", hurried.longest, hurry, hurry+slack)
	o.quote(hurried, blocked)
	quick := o.desk.sendMany(ctx, o.quick, callers, 0)
	o.figure("fail-fast: ErrBlocked, not sent", quick.of(blocked), callers)
	o.milliseconds("   the longest call, in ms", quick.longest, 0, slack)

	go func() { patient <- o.desk.sendMany(ctx, o.producer, callers, 0) }()
	err := o.ledger.waitFor(ctx, waiting)
	o.say("\nThe worker has gone on: a handler gets its next parcel only when the last one is acknowledged.")
	o.figure("parcels that waited, handled", o.ledger.of(waiting), len(waiting))
	o.between("   of them during the alarm", o.ledger.of(waiting)-before, 1, len(waiting))
	o.text("state of the publishing link", o.state("publishing").Phase, "blocked")
	return err
}

// relieved waits until all goes on after the alarm.
func (o *troubles) relieved(ctx context.Context, patient <-chan tally) error {
	o.say("\nThe alarm is over:")
	t := <-patient
	o.figure("patient: nil", t.of(confirmed), callers)
	o.say("              The longest call took %d ms.", t.longest.Milliseconds())
	if err := o.await(ctx, "connected"); err != nil {
		return err
	}
	err := o.becomes(ctx, "publishing", "connected")
	o.text("state of the publishing link", o.state("publishing").Phase, "connected")
	return errors.Join(err, o.ledger.waitFor(ctx, o.desk.with(confirmed)), o.emptied(ctx))
}

// account compares what callers were told with what the worker saw.
func (o *troubles) account(ctx context.Context) error {
	o.step("The account")
	safe, inDoubt, not := o.desk.with(confirmed), o.desk.with(unknown, doubtful), o.desk.with(blocked, unsent)
	booked, repeated, _ := o.ledger.counts("crew")
	o.say("%d parcels in all. %d publishes returned nil, %d are in doubt, %d were not sent:", len(safe)+len(inDoubt)+len(not), len(safe), len(inDoubt), len(not))
	o.figure("returned nil, and handled", o.ledger.of(safe), len(safe))
	o.figure("not sent, and handled all the same", o.ledger.of(not), 0)
	o.between("in doubt, and handled", o.ledger.of(inDoubt), 0, len(inDoubt))
	o.figure("handled, of which nobody knows", booked-o.ledger.of(safe)-o.ledger.of(inDoubt)-o.ledger.of(not), 0)
	o.say("              %d came once more: at least once is the promise.", repeated)
	return o.nothingLeft(ctx, 0)
}
