package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

func workQueue(ctx context.Context, t *tour) (err error) {
	cable := new(cable)
	d, err := openDepot(ctx, t, reconnect.Config{Name: t.name("depot"), DialContext: cable.dial})
	if err != nil {
		return err
	}
	d.cable = cable
	defer func() { err = errors.Join(err, d.close()) }()
	for _, part := range []func(context.Context) error{d.declaring, d.dispatch, d.cutting, d.failing} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (d *depot) declaring(ctx context.Context) error {
	d.step("What is declared")
	d.say("A queue is described by a value. Producers and workers declare what it needs, and do so again after")
	d.say("every reconnect; nobody has to prepare the broker:")
	topology := d.queue.Topology()
	for _, q := range topology.Queues {
		d.say("   queue %q, durable, %s", q.Name, cmp.Or(q.Type, amqp.QueueTypeQuorum))
		for _, name := range slices.Sorted(maps.Keys(q.Arguments)) {
			d.say("      %-26s %v", name, quoted(q.Arguments[name]))
		}
	}
	if err := d.conn.Declare(ctx, topology); err != nil {
		return err
	}
	found := 0
	for _, q := range topology.Queues {
		if _, err := d.conn.Inspect(ctx, q.Name); err != nil {
			return err
		}
		found++
	}
	d.figure("queues on the broker", found, 2)
	return nil
}

func quoted(v any) any {
	if s, ok := v.(string); ok {
		return fmt.Sprintf("%q", s)
	}
	return v
}

func (d *depot) dispatch(ctx context.Context) error {
	const parcels, quickly, slowly = 60, 4 * time.Millisecond, 100 * time.Millisecond
	d.step("Who gets which message")
	d.say("%d parcels and two workers. The quick one needs %v for a parcel, the slow one %v. The broker gives a", parcels, quickly, slowly)
	d.say("parcel to whoever is free, so the slow one gets fewer, and nobody waits for it:")
	ledger := newLedger()
	err := d.work(ctx, map[string]workqueue.Handler{
		"quick": ledger.handler("quick", quickly, none),
		"slow":  ledger.handler("slow", slowly, none),
	}, 1, func(ctx context.Context) error {
		if err := d.send(ctx, parcels); err != nil {
			return err
		}
		return ledger.wait(ctx, parcels)
	})
	if err != nil {
		return err
	}
	booked, repeated, quick := ledger.counts("quick")
	_, _, slow := ledger.counts("slow")
	for _, w := range []struct {
		name string
		n    int
	}{{"quick", quick}, {"slow", slow}} {
		d.say("   %-6s %s %d", w.name, strings.Repeat("#", w.n), w.n)
	}
	d.figure("parcels delivered", booked, parcels)
	d.figure("delivered twice", repeated, 0)
	d.between("of them by the slow worker", slow, 1, parcels/2-1)
	return nil
}

func (d *depot) cutting(ctx context.Context) error {
	const parcels, cuts = 300, 3
	d.step("The connections are cut")
	d.say("%d parcels are sent and delivered at the same time. Meanwhile the cable is cut, %d times, in the middle of", parcels, cuts)
	d.say("whatever it carries. A publish returns nil only when the broker has the parcel safely, and sends it again")
	d.say("after a cut; what a worker had in hands comes again. The log of the first time:")
	ledger := newLedger()
	confirmed, sockets := 0, 0
	err := d.work(ctx, map[string]workqueue.Handler{"crew": ledger.handler("crew", 5*time.Millisecond, none)}, 2,
		func(ctx context.Context) error {
			sent := make(chan error, 1)
			go func() {
				var err error
				confirmed, err = d.stream(ctx, parcels)
				sent <- err
			}()
			for i := range cuts {
				if err := ledger.wait(ctx, (i+1)*parcels/(cuts+1)); err != nil {
					return errors.Join(err, <-sent)
				}
				d.showLog(i == 0)
				n := d.cable.cut()
				sockets += n
				d.say("   cut number %d: %d connections", i+1, n)
			}
			if err := <-sent; err != nil {
				return err
			}
			return errors.Join(ledger.wait(ctx, parcels), d.emptied(ctx))
		})
	if err != nil {
		return err
	}
	d.showLog(false)
	booked, repeated, _ := ledger.counts("crew")
	d.figure("publishes that returned nil", confirmed, parcels)
	d.between("connections cut", sockets, cuts, 2*cuts) // a link may be between two dials
	d.figure("parcels delivered", booked, parcels)
	d.say("           %d of them came once more, because an acknowledgement, or a sender's confirmation, was cut off.", repeated)
	d.say("           At least once is the promise; they come under the same number, and the ledger counts them once.")
	return d.nothingLeft(ctx, 0)
}

func (d *depot) failing(ctx context.Context) error {
	const parcels, bad = 6, 3
	d.step("What fails goes to the dead-letter queue")
	d.say("%d parcels, of which number %d has an address that nobody can read, and a message that is no parcel at all.", parcels, bad)
	d.say("Neither holds up the others, comes again and again, or is lost:")
	d.showLog(true)
	ledger := newLedger()
	err := d.work(ctx, map[string]workqueue.Handler{"crew": ledger.handler("crew", 0, bad)}, 2,
		func(ctx context.Context) error {
			if err := d.send(ctx, parcels); err != nil {
				return err
			}
			if err := d.producer.Publish(ctx, amqp.Publishing{Body: []byte("a cat")}); err != nil {
				return err
			}
			return errors.Join(ledger.wait(ctx, parcels-1), d.emptied(ctx), d.reaches(ctx, d.queue.DeadLetterQueue(), 2))
		})
	d.showLog(false)
	if err != nil {
		return err
	}
	booked, repeated, _ := ledger.counts("crew")
	d.figure("parcels delivered", booked, parcels-1)
	d.figure("delivered twice", repeated, 0)
	if err := d.nothingLeft(ctx, 2); err != nil {
		return err
	}
	reasons, err := d.reasons(ctx)
	if err != nil {
		return err
	}
	d.say("           The broker writes down why they are there: %q", reasons)
	d.figure("of them rejected by their handler", count(reasons, "rejected"), 2)
	return nil
}

// nothingLeft checks that the queue is empty and how many messages the dead-letter queue holds.
func (d *depot) nothingLeft(ctx context.Context, dead int) error {
	work, err := d.conn.Inspect(ctx, d.queue.Name)
	if err != nil {
		return err
	}
	failed, err := d.conn.Inspect(ctx, d.queue.DeadLetterQueue())
	if err != nil {
		return err
	}
	d.figure("left in the queue", work.Messages, 0)
	d.figure("in the dead-letter queue", failed.Messages, dead)
	return nil
}

func count(list []string, want string) (n int) {
	for _, s := range list {
		if s == want {
			n++
		}
	}
	return n
}
