package idempotency

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/reconnect"
)

// Handle makes a Handler of h: each message is worked on in a transaction of Do, under the key of Config.Key. A message
// whose key is known succeeds without h, so it is acknowledged; one without a usable key is dead-lettered; what says NotNow
// stays with its worker. The acknowledgement follows the commit. A Retrier goes around it: retrier.Handle(inbox.Handle(h)).
//
// Handle of a nil h, or of an Inbox without a pool, is nil, which the constructors of consumers refuse.
func (b *Inbox) Handle(h func(ctx context.Context, tx pgx.Tx, d amqp.Delivery) error) Handler {
	if h == nil || b.pool == nil {
		return nil
	}
	return func(ctx context.Context, d amqp.Delivery) error {
		_, err := b.Do(ctx, b.cfg.Key(d), func(ctx context.Context, tx pgx.Tx) error { return h(ctx, tx, d) })
		return err
	}
}

// HandleBatch makes a handler for a batch worker of h: the new messages of a batch, in the order of the queue, are worked on
// in one transaction. Known ones succeed without h, and of those with the same key only the first is handed over. When h
// fails or panics everything is rolled back and the messages are handled one by one, each in a transaction of its own and h
// with that one alone: so h sees a message again, and one that fails fails alone. NotNow keeps the whole batch. When the
// batch's time is up there is none left for that: all of it fail.
//
// Its errors are those of each message (reconnect.BatchError). Handle says the rest.
func (b *Inbox) HandleBatch(h func(ctx context.Context, tx pgx.Tx, ds []amqp.Delivery) error) func(ctx context.Context, ds []amqp.Delivery) error {
	if h == nil || b.pool == nil {
		return nil
	}
	return func(ctx context.Context, ds []amqp.Delivery) error { return b.handleBatch(ctx, ds, h) }
}

type batchFunc = func(ctx context.Context, tx pgx.Tx, ds []amqp.Delivery) error

// batch is what a handler of HandleBatch was called with.
type batch struct {
	ds     []amqp.Delivery
	usable []int    // of ds: those with a usable key
	keys   []string // theirs
	failed reconnect.BatchError
}

func (b *Inbox) handleBatch(ctx context.Context, ds []amqp.Delivery, h batchFunc) error {
	t := batch{ds: ds, failed: make(reconnect.BatchError, len(ds))}
	for i, d := range ds {
		var key string
		err := b.contained(func() (err error) { key, err = b.checked(b.cfg.Key(d)); return err })
		if err != nil {
			t.failed[i] = b.metrics.ended(ctx, 1, 0, err)
			continue
		}
		t.keys, t.usable = append(t.keys, key), append(t.usable, i)
	}
	if len(t.usable) == 1 {
		t.failed[t.usable[0]] = b.alone(ctx, ds[t.usable[0]], t.keys[0], h)
		return t.err()
	}
	var fresh int
	err := b.contained(func() (err error) { fresh, err = b.together(ctx, &t, h); return err })
	if err != nil && !isNotNow(err) && ctx.Err() == nil {
		b.oneByOne(ctx, &t, h)
		return t.err()
	}
	_ = b.metrics.ended(ctx, len(t.keys), fresh, err)
	for _, i := range t.usable {
		t.failed[i] = err
	}
	return t.err()
}

// err returns the errors of the messages, nil when there are none.
func (t *batch) err() error {
	for _, err := range t.failed {
		if err != nil {
			return t.failed
		}
	}
	return nil
}

// together handles the usable ones in one transaction, and returns how many were new.
func (b *Inbox) together(ctx context.Context, t *batch, h batchFunc) (fresh int, err error) {
	return b.doBatch(ctx, t.keys, func(ctx context.Context, tx pgx.Tx, fresh []int) error {
		news := make([]amqp.Delivery, len(fresh)) // the handler's: it may keep or sort it
		for i, n := range fresh {
			news[i] = t.ds[t.usable[n]]
		}
		err := h(ctx, tx, news)
		if each := perMessage(err); each != nil && !slices.ContainsFunc(each, func(err error) bool { return err != nil }) {
			return nil // a list of no errors
		}
		return err
	})
}

// oneByOne handles each of the usable ones in a transaction of its own. After the first "not now" the others wait as well,
// with what is before it done.
func (b *Inbox) oneByOne(ctx context.Context, t *batch, h batchFunc) {
	for n, i := range t.usable {
		t.failed[i] = b.contained(func() error { return b.alone(ctx, t.ds[i], t.keys[n], h) })
		if isNotNow(t.failed[i]) {
			for _, rest := range t.usable[n+1:] {
				t.failed[rest] = t.failed[i]
			}
			return
		}
	}
}

// alone handles one.
func (b *Inbox) alone(ctx context.Context, d amqp.Delivery, key string, h batchFunc) error {
	_, err := b.do(ctx, key, func(ctx context.Context, tx pgx.Tx) error {
		err := h(ctx, tx, []amqp.Delivery{d})
		if each := perMessage(err); len(each) == 1 {
			return each[0]
		}
		return err
	})
	return err
}

// perMessage returns the list of errors that err is, and not one that it is joined with.
func perMessage(err error) reconnect.BatchError {
	for ; err != nil; err = errors.Unwrap(err) {
		if each, ok := err.(reconnect.BatchError); ok {
			return each
		}
	}
	return nil
}

// contained makes an error of a panic, which would be the whole batch's.
func (b *Inbox) contained(call func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			b.cfg.Logger.Error("idempotency: panic in a batch", "consumer", b.consumer, "panic", v, "stack", string(debug.Stack()))
			err = fmt.Errorf("idempotency: panicked: %v", v)
		}
	}()
	return call()
}
