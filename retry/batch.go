package retry

import (
	"context"
	"errors"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/consume"
	"github.com/warrenmq/warren/reconnect"
)

// atOnce is how many copies of a batch are under way at a time.
const atOnce = 64

// HandleBatch is Handle for a batch handler. What h returns speaks of each message if it unwraps into exactly len(ds) errors
// (reconnect.BatchError; nil entries are done), otherwise of all, and each failed message goes its own way: an attempt of
// its own, a delay, the dead-letter queue. h may be called with fewer messages than came: not with those that are not due
// yet, nor with those whose copy alone is to be sent again. The error returned is nil or a reconnect.BatchError with an
// entry for each message, all of them as Handle returns them.
func (r *Retrier) HandleBatch(h func(ctx context.Context, ds []amqp.Delivery) error) func(ctx context.Context, ds []amqp.Delivery) error {
	if h == nil {
		return nil
	}
	return func(ctx context.Context, ds []amqp.Delivery) error {
		if err := r.elsewhere(ctx); err != nil {
			return err
		}
		b := newBatch(r, ctx, ds)
		b.handle(ctx, h)
		b.settle(ctx)
		for _, err := range b.outcomes {
			if err != nil {
				return b.outcomes
			}
		}
		return nil
	}
}

// batch is one call of a batch handler. verdicts and outcomes have an entry for each message.
type batch struct {
	r        *Retrier
	ds       []amqp.Delivery
	verdicts []*verdict // to be carried out
	outcomes reconnect.BatchError

	// Of the messages that the handler is given.
	index  []int // in ds
	firsts []amqp.Delivery
	shown  []amqp.Delivery
	recs   []record
}

// newBatch sorts out which of ds are to be handled now.
func newBatch(r *Retrier, ctx context.Context, ds []amqp.Delivery) *batch {
	b := &batch{r: r, ds: ds, verdicts: make([]*verdict, len(ds)), outcomes: make(reconnect.BatchError, len(ds))}
	now := time.Now()
	for i, d := range ds {
		if v, ok := r.doubts.take(&ds[i]); ok {
			b.verdicts[i] = &v
			continue
		}
		first, rec := r.read(d)
		if v, ok := r.policy.onArrival(first, rec, now); ok && !consume.Ordered(ctx) {
			b.verdicts[i] = &v
			continue
		}
		b.index, b.firsts = append(b.index, i), append(b.firsts, first)
		b.shown, b.recs = append(b.shown, rec.show(first)), append(b.recs, rec)
	}
	return b
}

// handle calls h, and judges what it says of each message.
func (b *batch) handle(ctx context.Context, h func(ctx context.Context, ds []amqp.Delivery) error) {
	if len(b.shown) == 0 {
		return
	}
	err := b.r.guard(b.shown[0].MessageId, func() error { return h(ctx, b.shown) })
	each := errorOfEach(err, len(b.shown))
	for n, i := range b.index {
		b.verdicts[i], b.outcomes[i] = b.r.failed(ctx, b.firsts[n], b.recs[n], each[n])
	}
}

// settle carries out the verdicts, several at a time.
func (b *batch) settle(ctx context.Context) {
	var wg sync.WaitGroup
	turns := make(chan struct{}, atOnce)
	for i, v := range b.verdicts {
		if v == nil {
			continue
		}
		turns <- struct{}{}
		wg.Go(func() {
			b.outcomes[i] = b.r.settle(ctx, b.ds[i], *v)
			<-turns
		})
	}
	wg.Wait()
}

// errorOfEach returns the error of each of n messages.
func errorOfEach(err error, n int) []error {
	for e := err; e != nil; e = errors.Unwrap(e) {
		if many, ok := e.(interface{ Unwrap() []error }); ok {
			if each := many.Unwrap(); len(each) == n {
				return each
			}
			break
		}
	}
	all := make([]error, n)
	for i := range all {
		all[i] = err
	}
	return all
}
