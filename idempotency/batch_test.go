package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/idempotency"
	"github.com/warrenmq/warren/internal/testenv"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

func TestDoBatch(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	inbox := d.inbox("billing", idempotency.Config{})
	var got []int
	book := func(ctx context.Context, tx pgx.Tx, fresh []int) error {
		got = fresh
		for range fresh {
			if err := addA(ctx, tx); err != nil {
				return err
			}
		}
		return nil
	}
	for _, step := range []struct {
		keys  []string
		fresh []int
	}{
		{nil, nil},
		{[]string{"d", "b", "d", "a", "b"}, []int{0, 1, 3}},
		{[]string{"a", "c", "b", "c"}, []int{1}},
		{[]string{"a", "b", "c", "d"}, nil},
	} {
		got = nil
		require.NoError(t, inbox.DoBatch(t.Context(), step.keys, book))
		require.Equal(t, step.fresh, got, "%v", step.keys)
	}
	require.Equal(t, 4, d.balance("a"))

	got = nil
	err := inbox.DoBatch(t.Context(), []string{"x", "", "y"}, book)
	require.ErrorIs(t, err, idempotency.ErrNoKey)
	require.ErrorContains(t, err, "key 1")
	require.True(t, permanent(err))
	require.Nil(t, got)

	for _, fail := range []error{errWork, idempotency.ErrDone} {
		err = inbox.DoBatch(t.Context(), []string{"x", "y"}, func(ctx context.Context, tx pgx.Tx, fresh []int) error {
			return errors.Join(book(ctx, tx, fresh), fail)
		})
		require.ErrorIs(t, err, fail)
		require.Equal(t, 4, d.known(), "rolled back")
	}
}

// Batches with the same keys in opposite order, over and over: the keys are claimed in one order, so there is no deadlock.
func TestP64BatchesInOppositeOrder(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	inbox := d.inbox("billing", idempotency.Config{LockTimeout: patience})
	for round := range 20 {
		keys := make([]string, 40)
		for i := range keys {
			keys[i] = fmt.Sprintf("%d-%02d", round, i)
		}
		errs := all(4, func(i int) error {
			mine := slices.Clone(keys)
			if i%2 == 1 {
				slices.Reverse(mine)
			}
			return inbox.DoBatch(t.Context(), mine, func(ctx context.Context, tx pgx.Tx, fresh []int) error {
				_, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance + $1 WHERE id = 'a'", len(fresh))
				return err
			})
		})
		require.NoError(t, errors.Join(errs...))
	}
	require.Equal(t, 20*40, d.balance("a"))
	require.Zero(t, d.number("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"))
}

// deliveries are messages with the given ids.
func deliveries(ids ...string) []amqp.Delivery {
	ds := make([]amqp.Delivery, len(ids))
	for i, id := range ids {
		ds[i] = amqp.Delivery{MessageId: id, Body: []byte(id)}
	}
	return ds
}

func bodies(ds []amqp.Delivery) []string {
	out := make([]string, len(ds))
	for i, d := range ds {
		out[i] = string(d.Body)
	}
	return out
}

func TestHandleBatch(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	inbox := d.inbox("billing", idempotency.Config{LockTimeout: 100 * time.Millisecond})
	var calls [][]string
	var fail func(ids []string) error
	handle := inbox.HandleBatch(func(ctx context.Context, tx pgx.Tx, ds []amqp.Delivery) error {
		calls = append(calls, bodies(ds))
		for range ds {
			if err := addA(ctx, tx); err != nil {
				return err
			}
		}
		return fail(bodies(ds))
	})
	at := func(which string, err error) func([]string) error {
		return func(ids []string) error {
			if slices.Contains(ids, which) {
				return err
			}
			return nil
		}
	}
	each := func(t *testing.T, err error, n int) []error {
		t.Helper()
		if err == nil {
			return make([]error, n)
		}
		var failed reconnect.BatchError
		require.ErrorAs(t, err, &failed)
		require.Len(t, failed, n)
		return failed
	}
	for _, tt := range []struct {
		name  string
		ids   []string
		fail  func([]string) error
		calls [][]string
		want  map[int]error // of those that fail
		adds  int
	}{
		{"new ones", []string{"1", "2", "3"}, at("", nil), [][]string{{"1", "2", "3"}}, nil, 3},
		{"some known, in the order of the queue", []string{"5", "2", "4", "1", "5"}, at("", nil), [][]string{{"5", "4"}}, nil, 2},
		{"all known", []string{"1", "2"}, at("", nil), nil, nil, 0},
		{"P65 without a key", []string{"", "6", "\x00"}, at("", nil), [][]string{{"6"}},
			map[int]error{0: idempotency.ErrNoKey, 2: idempotency.ErrNoKey}, 1},
		{"none with a key", []string{"", ""}, at("", nil), nil, map[int]error{0: idempotency.ErrNoKey, 1: idempotency.ErrNoKey}, 0},
		{"one fails alone", []string{"7", "bad", "8"}, at("bad", errWork),
			[][]string{{"7", "bad", "8"}, {"7"}, {"bad"}, {"8"}}, map[int]error{1: errWork}, 2},
		{"one fails and is there twice", []string{"bad", "9", "bad"}, at("bad", errWork),
			[][]string{{"bad", "9"}, {"bad"}, {"9"}, {"bad"}}, map[int]error{0: errWork, 2: errWork}, 1},
		{"its error has an entry", []string{"bad"}, at("bad", reconnect.BatchError{errWork}), [][]string{{"bad"}}, map[int]error{0: errWork}, 0},
		{"a list of no errors", []string{"new 1", "new 2"}, func(ids []string) error { return make(reconnect.BatchError, len(ids)) },
			[][]string{{"new 1", "new 2"}}, nil, 2},
		{"a list of no errors, joined with one", []string{"13", "bad"}, func(ids []string) error {
			if err := at("bad", errWork)(ids); err != nil {
				return errors.Join(make(reconnect.BatchError, len(ids)), err)
			}
			return make(reconnect.BatchError, len(ids))
		}, [][]string{{"13", "bad"}, {"13"}, {"bad"}}, map[int]error{1: errWork}, 1},
		{"one is done, as the handler found out", []string{"10", "done", "11"}, at("done", idempotency.ErrDone),
			[][]string{{"10", "done", "11"}, {"10"}, {"done"}, {"11"}}, nil, 2},
		{"one is done, with an entry", []string{"12", "done"}, func(ids []string) error {
			failed := make(reconnect.BatchError, len(ids))
			for i, id := range ids {
				if id == "done" {
					failed[i] = idempotency.ErrDone
				}
			}
			return failed
		}, [][]string{{"12", "done"}, {"12"}, {"done"}}, nil, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			calls, fail = nil, tt.fail
			before := d.balance("a")
			errs := each(t, handle(t.Context(), deliveries(tt.ids...)), len(tt.ids))
			require.Equal(t, tt.calls, calls)
			for i, err := range errs {
				if tt.want[i] == nil {
					require.NoError(t, err, i)
				} else {
					require.ErrorIs(t, err, tt.want[i])
				}
			}
			require.Equal(t, before+tt.adds, d.balance("a"))
		})
	}

	t.Run("the key of one panics", func(t *testing.T) {
		fail = at("", nil)
		inbox := d.inbox("panics", idempotency.Config{Key: func(d amqp.Delivery) string {
			if d.MessageId == "panics" {
				panic("key")
			}
			return d.MessageId
		}})
		handle := inbox.HandleBatch(func(ctx context.Context, tx pgx.Tx, ds []amqp.Delivery) error { return nil })
		errs := each(t, handle(t.Context(), deliveries("50", "panics", "51")), 3)
		require.NoError(t, errs[0])
		require.ErrorContains(t, errs[1], "panicked: key")
		require.NoError(t, errs[2])
	})

	t.Run("the context has ended: there is no time to tell whose fault it was", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		calls, fail = nil, func([]string) error { cancel(); return ctx.Err() }
		for _, err := range each(t, handle(ctx, deliveries("60", "61")), 2) {
			require.ErrorIs(t, err, context.Canceled)
			require.False(t, notNow(err))
		}
		require.Equal(t, [][]string{{"60", "61"}}, calls)
	})

	t.Run("one panics alone", func(t *testing.T) {
		fail = func(ids []string) error {
			if slices.Contains(ids, "panics") {
				panic("work")
			}
			return nil
		}
		before := d.balance("a")
		errs := each(t, handle(t.Context(), deliveries("20", "panics", "21")), 3)
		require.NoError(t, errs[0])
		require.ErrorContains(t, errs[1], "panicked: work")
		require.NoError(t, errs[2])
		require.Equal(t, before+2, d.balance("a"))
	})

	t.Run("a busy one keeps the batch", func(t *testing.T) {
		calls, fail = nil, at("", nil)
		rival, err := d.pool.Begin(t.Context())
		require.NoError(t, err)
		defer rival.Rollback(context.Background())
		_, err = inbox.Claim(t.Context(), rival, "busy")
		require.NoError(t, err)
		for _, err := range each(t, handle(t.Context(), deliveries("30", "busy", "31")), 3) {
			require.True(t, notNow(err), "%v", err)
			require.ErrorIs(t, err, idempotency.ErrBusy)
		}
		require.Nil(t, calls)
		require.NoError(t, rival.Rollback(t.Context()))
		require.NoError(t, handle(t.Context(), deliveries("30", "busy", "31")))
	})

	t.Run("the database goes away one by one", func(t *testing.T) {
		calls = nil
		fail = func(ids []string) error {
			switch {
			case len(ids) > 1:
				return errWork
			case ids[0] == "41":
				return &unavailable{}
			}
			return nil
		}
		before := d.balance("a")
		errs := each(t, handle(t.Context(), deliveries("40", "41", "42")), 3)
		require.NoError(t, errs[0])
		require.True(t, notNow(errs[1]))
		require.True(t, notNow(errs[2]))
		require.Equal(t, [][]string{{"40", "41", "42"}, {"40"}, {"41"}}, calls)
		require.Equal(t, before+1, d.balance("a"))
	})
}

type unavailable struct{}

func (*unavailable) Error() string { return "the database is away" }
func (*unavailable) NotNow() bool  { return true }

// Over a broker: batches of messages that are there several times, and some that fail.
func TestBatchWorker(t *testing.T) {
	t.Parallel()
	d, q := newDB(t), newQueue(t, testenv.Shared(t))
	inbox := d.inbox("billing", idempotency.Config{})
	var msgs []amqp.Publishing
	const distinct, copies, bad = 60, 3, 4
	for range copies {
		for i := range distinct {
			msgs = append(msgs, amqp.Publishing{MessageId: fmt.Sprint(i), Body: []byte{byte(i)}})
		}
	}
	q.publish(msgs...)
	var mu sync.Mutex
	most := 0
	q.workBatches(inbox.HandleBatch(func(ctx context.Context, tx pgx.Tx, ds []amqp.Delivery) error {
		mu.Lock()
		most = max(most, len(ds))
		mu.Unlock()
		for _, d := range ds {
			if d.Body[0] < bad {
				return errWork
			}
			if err := addA(ctx, tx); err != nil {
				return err
			}
		}
		return nil
	}), workqueue.WorkerConfig{Concurrency: 2, BatchSize: 20})
	q.settled(bad * copies)
	require.Equal(t, distinct-bad, d.balance("a"))
	require.Equal(t, distinct-bad, d.known())
	require.Greater(t, most, 1, "it was done in batches")
}
