package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/warrenmq/warren/idempotency"
	"github.com/warrenmq/warren/outbox"
	"github.com/warrenmq/warren/reconnect"
)

const accounts = 5

// ledger looks at both sides, from outside.
type ledger struct {
	world
	pool *pgxpool.Pool
	conn *reconnect.Conn
	box  *outbox.Outbox
}

// openLedger makes the tables and the queue.
func openLedger(ctx context.Context, w world) (l *ledger, err error) {
	l = &ledger{world: w}
	if l.pool, err = pgxpool.New(ctx, w.Database); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			l.pool.Close()
		}
	}()
	if l.box, err = outbox.New(l.pool, outbox.Config{Logger: quiet}); err != nil {
		return nil, err
	}
	inbox, err := idempotency.New(l.pool, "bank", idempotency.Config{UUIDKeys: true, Logger: quiet})
	if err != nil {
		return nil, err
	}
	_, err = l.pool.Exec(ctx, `
		CREATE TABLE shop (open boolean NOT NULL);
		INSERT INTO shop VALUES (true);
		CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, account int NOT NULL, amount bigint NOT NULL);
		CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL DEFAULT 0);
		CREATE TABLE arrivals (id uuid PRIMARY KEY, times int NOT NULL DEFAULT 1)`)
	if err != nil {
		return nil, err
	}
	if _, err = l.pool.Exec(ctx, "INSERT INTO accounts (id) SELECT generate_series(0, $1::int - 1)", accounts); err != nil {
		return nil, err
	}
	if err := errors.Join(l.box.Migrate(ctx), inbox.Migrate(ctx)); err != nil {
		return nil, err
	}
	if l.conn, err = w.dial(ctx, "ledger"); err != nil {
		return nil, err
	}
	return l, l.conn.Declare(ctx, w.queue().Topology())
}

// close takes away what is on the broker.
func (l *ledger) close() error {
	defer l.pool.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	l.conn.Forget(l.queue().Topology()) // a reconnect must not make it anew
	ch, err := l.conn.Channel(ctx)
	if err != nil {
		return errors.Join(err, l.conn.Close(ctx))
	}
	for _, q := range l.queue().Topology().Queues {
		_, deleted := ch.QueueDelete(q.Name, false, false, false)
		err = errors.Join(err, deleted)
	}
	return errors.Join(err, ch.Close(), l.conn.Close(ctx))
}

// progress is what a process has done so far, its predecessors included; -1 while the database is away.
func (l *ledger) progress(ctx context.Context, role string) (n int) {
	query := map[string]string{"shop": "SELECT count(*) FROM orders", "bank": "SELECT count(*) FROM inbox"}[role]
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := l.pool.QueryRow(ctx, query).Scan(&n); err != nil {
		return -1
	}
	return n
}

// closeShop has no more orders taken, by this shop and those after it.
func (l *ledger) closeShop(ctx context.Context) error {
	_, err := l.pool.Exec(ctx, "UPDATE shop SET open = false")
	return err
}

// takeRest takes what is left in the queue and returns how many of the messages nobody has booked. A bank that is stopped gives
// back what it has not begun: that may be messages that came once more.
func (l *ledger) takeRest(ctx context.Context) (unbooked int, err error) {
	ch, err := l.conn.Channel(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, ch.Close()) }()
	for {
		d, ok, err := ch.Get(l.Queue, true)
		if err != nil || !ok {
			return unbooked, err
		}
		var booked bool
		if err := l.pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM inbox WHERE key::text = $1)", d.MessageId).Scan(&booked); err != nil {
			return unbooked, err
		}
		if !booked {
			unbooked++
		}
	}
}

// result is both sides compared.
type result struct {
	Orders, Booked, Arrived  int   // orders, messages handled, deliveries noted
	Ordered, Balances        int64 // sums, in cents
	WrongAccounts            int
	InOutbox, InQueue, InDLQ int
	Kills                    map[string]int // by role, and name of the server
	Took                     time.Duration
}

func (l *ledger) result(ctx context.Context) (r result, err error) {
	err = l.pool.QueryRow(ctx, `SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM inbox),
		(SELECT coalesce(sum(times), 0) FROM arrivals),
		(SELECT coalesce(sum(amount), 0)::bigint FROM orders), (SELECT sum(balance)::bigint FROM accounts),
		(SELECT count(*) FROM accounts a WHERE balance <> (SELECT coalesce(sum(amount), 0) FROM orders o WHERE o.account = a.id))`,
	).Scan(&r.Orders, &r.Booked, &r.Arrived, &r.Ordered, &r.Balances, &r.WrongAccounts)
	if err != nil {
		return r, err
	}
	stats, err := l.box.Stats(ctx)
	if err != nil {
		return r, err
	}
	r.InOutbox = int(stats.Waiting + stats.Scheduled + stats.Retrying + stats.Parked)
	for name, n := range map[string]*int{l.Queue: &r.InQueue, l.queue().DeadLetterQueue(): &r.InDLQ} {
		q, err := l.conn.Inspect(ctx, name)
		if err != nil {
			return r, err
		}
		*n = q.Messages
	}
	return r, nil
}

// settled waits until everything that was ordered was booked, and nothing is on its way.
func (l *ledger) settled(ctx context.Context) error {
	for {
		r, err := l.result(ctx)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("not settled in time: %+v: %w", r, context.Cause(ctx))
		case err == nil && r.Booked == r.Orders && r.InOutbox == 0 && r.InQueue == 0:
			return nil
		}
		pause(ctx, shortPause)
	}
}

// exact reports whether nothing was lost and nothing was counted twice.
func (r result) exact() bool {
	return r.Ordered == r.Balances && r.WrongAccounts == 0 && r.Orders == r.Booked && r.InOutbox+r.InQueue+r.InDLQ == 0
}

func (r result) print(out io.Writer) error {
	fmt.Fprintf(out, "\nkilled:          the shop %d times, the bank %d times\nrestarts:        of the broker %d, of the database, by a crash, %d\ntook:            %v\n",
		r.Kills["shop"], r.Kills["bank"], r.Kills["the broker"], r.Kills["the database"], r.Took.Round(100*time.Millisecond))
	fmt.Fprintf(out, "orders:          %d\n", r.Orders)
	fmt.Fprintf(out, "handler called:  at least %d times, for messages that came again as well\n", r.Arrived)
	fmt.Fprintf(out, "booked:          %d\n", r.Booked)
	fmt.Fprintf(out, "dead letters:    %d\n", r.InDLQ)
	fmt.Fprintf(out, "ordered:         %d cents\n", r.Ordered)
	fmt.Fprintf(out, "all balances:    %d cents\n", r.Balances)
	if !r.exact() {
		return fmt.Errorf("the sums differ, or something is left: %+v", r)
	}
	fmt.Fprintln(out, "exact to the unit, in every account")
	return nil
}
