package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/warrenmq/warren/reconnect"
)

// change is the message.
type change struct {
	Booking string
	Step    int // of steps
}

var steps = []string{"create", "change", "cancel"}

// desk applies changes, which takes some time and not always the same, and writes down which of them came out of turn.
type desk struct {
	bookings int

	mu         sync.Mutex
	applied    map[string]int // how many steps of a booking
	state      map[string]int // the step applied last
	atOnce     int
	left       int
	sum        result
	everything chan struct{} // closed when all is applied
}

type result struct {
	outOfTurn   int
	example     string // the first of them
	stillBooked int    // at the end, although it was cancelled
	mostAtOnce  int    // changes that were being applied at the same time
	took        time.Duration
}

func (r result) String() string {
	text := fmt.Sprintf("  out of turn:   %d\n", r.outOfTurn)
	if r.example != "" {
		text += fmt.Sprintf("                 such as %s\n", r.example)
	}
	return text + fmt.Sprintf("  still booked:  %d, although all were cancelled\n  in parallel:   up to %d\n  took:          %v\n",
		r.stillBooked, r.mostAtOnce, r.took.Round(time.Millisecond))
}

func newDesk(bookings int) *desk {
	return &desk{bookings: bookings, left: bookings * len(steps), applied: map[string]int{}, state: map[string]int{},
		everything: make(chan struct{})}
}

// apply is the handler.
func (d *desk) apply(ctx context.Context, c change) error {
	if c.Step < 0 || c.Step >= len(steps) {
		return errors.New("no such step")
	}
	d.mu.Lock()
	d.atOnce++
	d.sum.mostAtOnce = max(d.sum.mostAtOnce, d.atOnce)
	d.mu.Unlock()
	var err error
	select {
	case <-time.After(time.Duration(1+rand.IntN(10)) * time.Millisecond):
	case <-ctx.Done():
		err = ctx.Err()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.atOnce--
	if err == nil {
		d.done(c)
	}
	return err
}

// done books c. The caller holds mu.
func (d *desk) done(c change) {
	if turn := d.applied[c.Booking]; c.Step != turn {
		d.sum.outOfTurn++
		if d.sum.example == "" {
			d.sum.example = fmt.Sprintf("%q of booking %q, when the turn was at %q", steps[c.Step], c.Booking, steps[min(turn, len(steps)-1)])
		}
	}
	d.applied[c.Booking]++
	d.state[c.Booking] = c.Step
	if d.left--; d.left == 0 {
		close(d.everything)
	}
}

func (d *desk) result() result {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sum.stillBooked = 0
	for _, step := range d.state {
		if steps[step] != "cancel" {
			d.sum.stillBooked++
		}
	}
	return d.sum
}

// runner is a worker or a consumer.
type runner interface {
	Run(ctx context.Context) error
}

// open runs the runners until every booking was created, changed and cancelled.
func (d *desk) open(ctx context.Context, runners []runner) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	errs := make([]error, len(runners))
	var running sync.WaitGroup
	began := time.Now()
	for i, r := range runners {
		running.Go(func() {
			if errs[i] = r.Run(ctx); errs[i] != nil {
				stop(errs[i]) // the others cannot do it alone
			}
		})
	}
	var err error
	select {
	case <-d.everything:
		d.mu.Lock()
		d.sum.took = time.Since(began)
		d.mu.Unlock()
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	stop(nil)
	running.Wait()
	return errors.Join(append(errs, err)...)
}

// mail is what has come in before the desk opens: the steps of each booking in their order.
func (d *desk) mail() (mail []change) {
	for i := range d.bookings {
		for step := range steps {
			mail = append(mail, change{Booking: fmt.Sprintf("b-%d", i), Step: step})
		}
	}
	return mail
}

// remove takes away what was declared.
func remove(conn *reconnect.Conn, t reconnect.Topology) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	ch, err := conn.Channel(ctx)
	if err != nil {
		return err
	}
	defer ch.Close()
	conn.Forget(t)
	for _, q := range t.Queues {
		if _, err := ch.QueueDelete(q.Name, false, false, false); err != nil {
			return fmt.Errorf("delete queue %q: %w", q.Name, err)
		}
	}
	for _, e := range t.Exchanges {
		if err := ch.ExchangeDelete(e.Name, false, false); err != nil {
			return fmt.Errorf("delete exchange %q: %w", e.Name, err)
		}
	}
	return nil
}
