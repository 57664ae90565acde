package main

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

const (
	heartbeat = time.Second             // asked of the broker; a silent one is given up after at most three
	hurry     = 300 * time.Millisecond  // what a caller in a hurry gives a publish
	callers   = 20                      // that publish at the same time
	slack     = 1500 * time.Millisecond // how much longer a call may take on a busy machine; with hurry less than 2 heartbeats
)

// troubles is the chapter of the broker that is there, and does not serve.
type troubles struct {
	*depot
	quick  *workqueue.Producer // one that fails fast
	desk   *desk
	ledger *ledger
}

func outage(ctx context.Context, t *tour) (err error) {
	d, err := openDepot(ctx, t, reconnect.Config{Name: t.name("depot"), Heartbeat: heartbeat})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	quick, err := workqueue.NewProducer(d.conn, d.queue, reconnect.PublisherConfig{FailFast: true})
	if err != nil {
		return err
	}
	o := &troubles{depot: d, quick: quick, desk: newDesk(), ledger: newLedger()}
	for _, part := range []func(context.Context) error{o.callers, o.freezing, o.alarm, o.account} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (o *troubles) callers(ctx context.Context) error {
	o.step("Who sends")
	o.say("A worker handles what three kinds of callers send. They differ in what they are ready to wait for:")
	o.say("   patient     the call may take as long as it must: its context lives on")
	o.say("   in a hurry  the call has a context of %v", hurry)
	o.say("   fail-fast   the call waits for no connection and sends nothing twice (PublisherConfig.FailFast)")
	o.say("As long as all is well that makes no difference:")
	t := o.desk.sendMany(ctx, o.producer, callers, 0)
	q := o.desk.sendMany(ctx, o.quick, callers, 0)
	if err := errors.Join(append(t.errs, q.errs...)...); err != nil {
		return err
	}
	o.figure("publishes that returned nil", t.of(confirmed)+q.of(confirmed), 2*callers)
	return nil
}

// crew runs the worker, with two handlers at a time, while the given function goes on.
func (o *troubles) crew(ctx context.Context, takes time.Duration, during func(context.Context) error) error {
	return o.work(ctx, map[string]workqueue.Handler{"crew": o.ledger.handler("crew", takes, none)}, 2, during)
}

func (o *troubles) freezing(ctx context.Context) error {
	o.step("The broker freezes")
	o.say("Its processes are stopped. The sockets stay open, the kernel still takes bytes for them, nothing answers. Only")
	o.say("heartbeats tell; one is due every %v. A patient caller sends one parcel after the other meanwhile.", heartbeat)
	return o.crew(ctx, 5*time.Millisecond, func(ctx context.Context) error {
		stop, patient := make(chan struct{}), make(chan tally, 1)
		go func() { patient <- o.desk.sendOn(ctx, o.producer, stop) }()
		end := sync.OnceValue(func() tally { close(stop); return <-patient })
		thaw := sync.OnceValue(o.node.Thaw)
		err := o.ledger.wait(ctx, 3*callers)
		if err == nil {
			err = o.frozen(ctx, thaw)
		}
		if err = errors.Join(err, thaw()); err != nil {
			end()
			return err
		}
		return o.thawed(ctx, end)
	})
}

// frozen freezes the broker and calls it, before and after it is known to be gone.
func (o *troubles) frozen(ctx context.Context, thaw func() error) error {
	if err := o.node.Freeze(); err != nil {
		return err
	}
	began := time.Now()
	o.say("\nIt is frozen now. What is called is written to the socket, and no confirmation comes:")
	fast := make(chan tally, 1)
	go func() { fast <- o.desk.sendMany(ctx, o.quick, callers, 0) }()
	hurried := o.desk.sendMany(ctx, o.producer, callers, hurry)
	o.between("in a hurry: ErrUnknown", hurried.of(unknown), 1, callers)
	o.between("   or not written in time", hurried.of(unsent), 0, callers-1) // on a machine that does much else
	o.milliseconds("   the longest call, in ms", hurried.longest, hurry, hurry+slack)
	o.quote(hurried, unknown)
	if err := o.await(ctx, "connecting"); err != nil {
		return errors.Join(err, thaw())
	}
	o.milliseconds("the loss is noticed after, in ms", time.Since(began), 0, 3*heartbeat+slack)
	quick := <-fast
	o.figure("fail-fast: ErrUnknown", quick.of(unknown), callers)
	o.milliseconds("   the longest call, in ms", quick.longest, 0, 3*heartbeat+slack)
	o.quote(quick, unknown)
	o.say("The state of the two links and of the worker, as Conn.State tells it:")
	for _, name := range []string{"publishing", "consuming", o.queue.Name + "/1"} {
		s := o.state(name)
		o.say("   %-10s  %-10s  %s", o.short(s.Name), s.Phase, s.Reason)
	}

	o.say("\nNow it is known that nobody is there. What is called is not sent, and that is certain:")
	hurried = o.desk.sendMany(ctx, o.producer, callers, hurry)
	o.figure("in a hurry: not sent", hurried.of(unsent), callers)
	o.quote(hurried, unsent)
	quick = o.desk.sendMany(ctx, o.quick, callers, 0)
	o.figure("fail-fast: not sent", quick.of(unsent), callers)
	o.milliseconds("   the longest call, in ms", quick.longest, 0, slack)
	o.quote(quick, unsent)
	return nil
}

// thawed waits until all goes on, and looks at what the patient callers got.
func (o *troubles) thawed(ctx context.Context, end func() tally) error {
	began := time.Now()
	before := len(o.desk.with(confirmed))
	err := o.await(ctx, "connected")
	o.say("\nThe broker goes on. Connected again after %d ms:", time.Since(began).Milliseconds())
	for err == nil && len(o.desk.with(confirmed)) < before+callers {
		pause(ctx, 10*time.Millisecond)
		err = ctx.Err()
	}
	patient := end()
	if err != nil {
		return err
	}
	o.figure("patient: nil", patient.of(confirmed), len(patient.errs))
	o.say("              The longest call took %d ms: it waited, and sent its parcel again under the same MessageId.", patient.longest.Milliseconds())
	return errors.Join(o.ledger.waitFor(ctx, o.desk.with(confirmed)), o.emptied(ctx))
}

// await blocks until both links are in the given phase.
func (o *troubles) await(ctx context.Context, phase string) error {
	return errors.Join(o.becomes(ctx, "publishing", phase), o.becomes(ctx, "consuming", phase))
}

// becomes blocks until a link is in the given phase.
func (o *troubles) becomes(ctx context.Context, link, phase string) error {
	for o.state(link).Phase != phase {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		pause(ctx, 5*time.Millisecond)
	}
	return nil
}

// state returns the state of a link or of one of the worker's handlers.
func (o *troubles) state(name string) (found reconnect.State) {
	for _, s := range o.conn.State() {
		if s.Name == name {
			found = s
		}
	}
	return found
}

// quote shows an error of those that came out so.
func (o *troubles) quote(t tally, which outcome) {
	if err := t.example(which); err != nil {
		o.say("              %s", o.short(err.Error()))
	}
}

// short leaves out what all names of this tour have in common.
func (o *troubles) short(text string) string { return strings.ReplaceAll(text, o.name(""), "") }

func (o *troubles) milliseconds(what string, took, low, high time.Duration) {
	o.between(what, int(took.Milliseconds()), int(low.Milliseconds()), int(high.Milliseconds()))
}
