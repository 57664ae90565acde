package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/idempotency"
	"github.com/warrenmq/warren/outbox"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

// bank is the chapter of money: orders of a shop, and balances.
type bank struct {
	*depot
	pool  *pgxpool.Pool
	wire  *cable // to the database
	inbox *idempotency.Inbox
	box   *outbox.Outbox
}

// bill is the message.
type bill struct {
	Account string
	Amount  int64
}

func payments(ctx context.Context, t *tour) (err error) {
	cable, wire := new(cable), cable{}
	d, err := openDepot(ctx, t, reconnect.Config{Name: t.name("bank"), DialContext: cable.dial})
	if err != nil {
		return err
	}
	d.cable, d.queue.Name = cable, t.name("bills")
	defer func() { err = errors.Join(err, d.close()) }()
	if d.producer, err = workqueue.NewProducer(d.conn, d.queue, reconnect.PublisherConfig{}); err != nil {
		return err
	}
	b := &bank{depot: d, wire: &wire}
	if err := b.open(ctx); err != nil {
		return err
	}
	defer b.pool.Close()
	for _, part := range []func(context.Context) error{b.twice, b.atOnce, b.wholeWay} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

// open makes the tables.
func (b *bank) open(ctx context.Context) error {
	cfg, err := pgxpool.ParseConfig(b.database)
	if err != nil {
		return err
	}
	cfg.MaxConns = 24 // more than there are handlers
	cfg.ConnConfig.DialFunc = b.wire.dial
	if b.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return err
	}
	quiet := slog.New(slog.DiscardHandler)
	if b.inbox, err = idempotency.New(b.pool, "bank", idempotency.Config{Logger: quiet}); err != nil {
		return err
	}
	if b.box, err = outbox.New(b.pool, outbox.Config{Logger: quiet}); err != nil {
		return err
	}
	_, err = b.pool.Exec(ctx, `CREATE TABLE accounts (id text PRIMARY KEY, balance bigint NOT NULL DEFAULT 0);
		CREATE TABLE orders (account text NOT NULL, amount bigint NOT NULL);
		INSERT INTO accounts VALUES ('without'), ('inbox'), ('copies'), ('ann'), ('bob')`)
	return errors.Join(err, b.inbox.Migrate(ctx), b.box.Migrate(ctx))
}

// credit adds a bill to a balance.
func credit(ctx context.Context, tx pgx.Tx, d amqp.Delivery) error {
	var p bill
	if err := json.Unmarshal(d.Body, &p); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance + $2 WHERE id = $1", p.Account, p.Amount)
	return err
}

// bookAgain is credit in a transaction of its own, as a handler has it that does not look at ids.
func (b *bank) bookAgain(ctx context.Context, d amqp.Delivery) error {
	return pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error { return credit(ctx, tx, d) })
}

func (b *bank) balance(ctx context.Context, account string) (n int, err error) {
	err = b.pool.QueryRow(ctx, "SELECT balance FROM accounts WHERE id = $1", account).Scan(&n)
	return n, err
}

// bills are n messages of 1 to an account, each of them so many times.
func (b *bank) bills(account string, n, times int) (msgs []amqp.Publishing) {
	for i := range n {
		for range times {
			msgs = append(msgs, amqp.Publishing{
				MessageId: fmt.Sprintf("%s-%d", account, i), Body: fmt.Appendf(nil, `{"Account": %q, "Amount": 1}`, account),
			})
		}
	}
	return msgs
}

func (b *bank) twice(ctx context.Context) error {
	const n, times = 40, 3
	b.step("The same message, more than once")
	b.say("At least once is what a broker can promise. Whoever adds to a balance must not do it twice. %d bills of 1, each", n)
	b.say("of which comes %d times, for a handler that does not look, and for one behind an inbox. The inbox writes the", times)
	b.say("message's id into a table, in the transaction that adds to the balance; what is in the table is not done again:")
	for _, part := range []struct {
		account, what string
		handle        workqueue.Handler
		want          int
	}{
		{"without", "balance, when nobody looks", b.bookAgain, n * times},
		{"inbox", "balance, behind the inbox", b.inbox.Handle(credit), n},
	} {
		var handled atomic.Int32
		count := func(ctx context.Context, d amqp.Delivery) error {
			err := part.handle(ctx, d)
			if err == nil {
				handled.Add(1)
			}
			return err
		}
		err := b.work(ctx, map[string]workqueue.Handler{"crew": count}, 8, func(ctx context.Context) error {
			err := b.producer.PublishBatch(ctx, b.bills(part.account, n, times))
			for err == nil && handled.Load() < n*times { // not until the queue is empty: what a worker has not begun it gives back
				pause(ctx, 5*time.Millisecond)
				err = ctx.Err()
			}
			return err
		})
		if err != nil {
			return err
		}
		got, err := b.balance(ctx, part.account)
		if err != nil {
			return err
		}
		b.figure(part.what, got, part.want)
	}
	return nil
}

func (b *bank) atOnce(ctx context.Context) error {
	const copies = 16
	b.step("All copies at once, and the first one dies")
	b.say("%d copies of one bill, %d handlers at the same time. Those that come second wait until it is known what became", copies, copies)
	b.say("of the first. That one's session is cut when it has added the money, and before it could commit:")
	var calls atomic.Int32
	err := b.work(ctx, map[string]workqueue.Handler{"crew": b.inbox.Handle(func(ctx context.Context, tx pgx.Tx, d amqp.Delivery) error {
		err := credit(ctx, tx, d)
		if calls.Add(1) == 1 {
			return errors.Join(err, tx.Conn().PgConn().Conn().Close())
		}
		return err
	})}, copies, func(ctx context.Context) error {
		return errors.Join(b.producer.PublishBatch(ctx, b.bills("copies", 1, copies)), b.emptied(ctx))
	})
	if err != nil {
		return err
	}
	got, err := b.balance(ctx, "copies")
	if err != nil {
		return err
	}
	b.figure("times the money was added", got, 1)
	b.between("times the handler was called", int(calls.Load()), 2, 3)
	return nil
}

func (b *bank) wholeWay(ctx context.Context) error {
	const orders, cuts = 200, 3
	b.step("The whole way: order, outbox, queue, inbox, balance")
	b.say("A shop stores %d orders, each in one transaction with the message about it: so there is none without the other.", orders)
	b.say("A relay sends the messages, the bank books them. Meanwhile all connections are cut, %d times those to the broker", cuts)
	b.say("and %d times those to the database:", cuts)
	pub, err := b.conn.NewPublisher(reconnect.PublisherConfig{Window: 1000})
	if err != nil {
		return err
	}
	relay, err := outbox.NewRelay(b.box, pub, outbox.RelayConfig{})
	if err != nil {
		return err
	}
	relaying, stop := context.WithCancel(ctx)
	defer stop()
	var running sync.WaitGroup
	var relayed error
	running.Go(func() { relayed = relay.Run(relaying) })
	cut := 0
	err = b.work(ctx, map[string]workqueue.Handler{"crew": b.inbox.Handle(credit)}, 4, func(ctx context.Context) error {
		for i := range orders {
			b.order(ctx, []string{"ann", "bob"}[i%2], int64(i))
			if i%(orders/(cuts+1)) == 0 && i > 0 && cut < 2*cuts {
				b.cable.cut()
				b.wire.cut()
				cut += 2
			}
			pause(ctx, 2*time.Millisecond)
		}
		return b.balanced(ctx)
	})
	stop()
	running.Wait()
	if err := errors.Join(err, relayed); err != nil {
		return err
	}
	return b.compare(ctx, cut)
}

// order stores an order and the message about it, again when the database cannot take it.
func (b *bank) order(ctx context.Context, account string, amount int64) {
	for ctx.Err() == nil {
		err := b.box.InTx(ctx, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "INSERT INTO orders VALUES ($1, $2)", account, amount); err != nil {
				return err
			}
			return b.box.Enqueue(ctx, tx, outbox.Message{Key: b.queue.Name, JSON: bill{account, amount}})
		})
		if err == nil {
			return
		}
		pause(ctx, 10*time.Millisecond)
	}
}

const sums = `SELECT (SELECT count(*) FROM orders), (SELECT coalesce(sum(amount), 0)::bigint FROM orders),
	(SELECT sum(balance)::bigint FROM accounts WHERE id IN ('ann', 'bob'))`

// balanced waits until what was ordered was booked, and nothing is on its way.
func (b *bank) balanced(ctx context.Context) error {
	for {
		var count, ordered, booked int
		err := b.pool.QueryRow(ctx, sums).Scan(&count, &ordered, &booked)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil && ordered == booked {
			return b.emptied(ctx)
		}
		pause(ctx, 20*time.Millisecond)
	}
}

func (b *bank) compare(ctx context.Context, cut int) error {
	var count, ordered, booked int
	if err := b.pool.QueryRow(ctx, sums).Scan(&count, &ordered, &booked); err != nil {
		return err
	}
	stats, err := b.box.Stats(ctx)
	if err != nil {
		return err
	}
	b.say("           %d orders over %d; an order whose commit was cut off may be there twice, each with its message.", count, ordered)
	b.figure("times that connections were cut", cut, 6)
	b.figure("sum of the balances", booked, ordered)
	b.figure("left in the outbox", int(stats.Waiting+stats.Retrying+stats.Parked), 0)
	return b.nothingLeft(ctx, 0)
}
