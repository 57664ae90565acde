package main

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

// outcome is what a publish returned.
type outcome int

const (
	confirmed outcome = iota // nil: the broker has it
	unknown                  // ErrUnknown: it may have arrived
	doubtful                 // ErrUnknown joined with ErrBlocked: written when the alarm came, it may arrive
	blocked                  // ErrBlocked alone: not sent, because of an alarm
	unsent                   // another error: not sent
)

func outcomeOf(err error) outcome {
	inDoubt, alarm := errors.Is(err, reconnect.ErrUnknown), errors.Is(err, reconnect.ErrBlocked)
	switch {
	case err == nil:
		return confirmed
	case inDoubt && alarm:
		return doubtful
	case inDoubt:
		return unknown
	case alarm:
		return blocked
	}
	return unsent
}

// desk is where parcels are handed in. Each has a number of its own, and the desk notes what became of it.
type desk struct {
	mu     sync.Mutex
	next   int
	issued map[outcome][]int
}

func newDesk() *desk { return &desk{issued: map[outcome][]int{}} }

// number returns the number of the next parcel.
func (k *desk) number() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.next++
	return k.next - 1
}

func (k *desk) note(number int, o outcome) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.issued[o] = append(k.issued[o], number)
}

// with returns the numbers of the parcels that came out so.
func (k *desk) with(outcomes ...outcome) (numbers []int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, o := range outcomes {
		numbers = append(numbers, k.issued[o]...)
	}
	return numbers
}

// tally is what became of some calls that were made together.
type tally struct {
	errs    []error
	longest time.Duration // of the calls
}

// of counts the calls that came out so.
func (t tally) of(want outcome) (n int) {
	for _, err := range t.errs {
		if outcomeOf(err) == want {
			n++
		}
	}
	return n
}

// example returns an error of those that came out so.
func (t tally) example(want outcome) error {
	if i := slices.IndexFunc(t.errs, func(err error) bool { return outcomeOf(err) == want }); i >= 0 {
		return t.errs[i]
	}
	return nil
}

// send hands in one parcel.
func (k *desk) send(ctx context.Context, p *workqueue.Producer) error {
	number := k.number()
	err := p.PublishJSON(ctx, parcel{Number: number})
	k.note(number, outcomeOf(err))
	return err
}

// sendMany hands in n parcels by as many callers at the same time, and waits for all; each has the given time, 0: what
// the producer allows.
func (k *desk) sendMany(ctx context.Context, p *workqueue.Producer, n int, patience time.Duration) tally {
	began := time.Now() // before the context's time begins: no call that lasts until its end is shorter
	if patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	t := tally{errs: make([]error, n)}
	var calls sync.WaitGroup
	for i := range n {
		calls.Go(func() { t.errs[i] = k.send(ctx, p) })
	}
	calls.Wait()
	t.longest = time.Since(began)
	return t
}

// sendBatch hands in n parcels by one call.
func (k *desk) sendBatch(ctx context.Context, p *workqueue.Producer, n int, patience time.Duration) (t tally, numbers []int) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	msgs := make([]amqp.Publishing, n)
	for i := range msgs {
		numbers = append(numbers, k.number())
		body, _ := json.Marshal(parcel{Number: numbers[i]}) // a number cannot fail
		msgs[i] = amqp.Publishing{ContentType: "application/json", Body: body}
	}
	err := p.PublishBatch(ctx, msgs)
	t.longest = time.Since(began)
	var each reconnect.BatchError
	if !errors.As(err, &each) {
		each = slices.Repeat(reconnect.BatchError{err}, n) // of all of them alike
	}
	t.errs = each
	for i, number := range numbers {
		k.note(number, outcomeOf(each[i]))
	}
	return t, numbers
}

// sendOn hands in one parcel after the other until stop is closed, whatever happens meanwhile.
func (k *desk) sendOn(ctx context.Context, p *workqueue.Producer, stop <-chan struct{}) tally {
	var t tally
	for ctx.Err() == nil {
		select {
		case <-stop:
			return t
		default:
		}
		began := time.Now()
		t.errs = append(t.errs, k.send(ctx, p))
		t.longest = max(t.longest, time.Since(began))
		pause(ctx, 10*time.Millisecond)
	}
	return t
}
