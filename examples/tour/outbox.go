package main

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/outbox"
	"github.com/warrenmq/warren/reconnect"
	"github.com/warrenmq/warren/workqueue"
)

// mailroom is the chapter of the outbox.
type mailroom struct {
	*depot
	box *outbox.Outbox

	mu   sync.Mutex
	came []string // types of letters, in the order in which they came
}

func transactionalOutbox(ctx context.Context, t *tour) (err error) {
	d, err := openDepot(ctx, t, reconnect.Config{Name: t.name("mailroom")})
	if err != nil {
		return err
	}
	d.queue.Name = t.name("letters")
	if d.producer, err = workqueue.NewProducer(d.conn, d.queue, reconnect.PublisherConfig{}); err != nil {
		return errors.Join(err, d.conn.Close(context.Background()))
	}
	defer func() { err = errors.Join(err, d.close()) }()
	pool, err := pgxpool.New(ctx, t.database)
	if err != nil {
		return err
	}
	defer pool.Close()
	m := &mailroom{depot: d}
	if m.box, err = outbox.New(pool, outbox.Config{Table: "letters", Logger: slog.New(slog.DiscardHandler)}); err != nil {
		return err
	}
	if err := m.box.Migrate(ctx); err != nil {
		return err
	}
	return m.work(ctx, map[string]workqueue.Handler{"clerk": m.take}, 1, func(ctx context.Context) error {
		return m.relaying(ctx, func(ctx context.Context) error {
			return errors.Join(m.late(ctx, pool), m.poison(ctx))
		})
	})
}

func (m *mailroom) take(_ context.Context, d amqp.Delivery) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.came = append(m.came, d.Type)
	return nil
}

// arrived waits until n letters have come, in all, and returns which.
func (m *mailroom) arrived(ctx context.Context, n int) []string {
	for {
		m.mu.Lock()
		came := slices.Clone(m.came)
		m.mu.Unlock()
		if len(came) >= n || ctx.Err() != nil {
			return came
		}
		pause(ctx, 5*time.Millisecond)
	}
}

// nth waits for the nth letter and returns it, "" when it does not come.
func (m *mailroom) nth(ctx context.Context, n int) string {
	if came := m.arrived(ctx, n); len(came) >= n {
		return came[n-1]
	}
	return ""
}

// relaying runs a relay beside during.
func (m *mailroom) relaying(ctx context.Context, during func(context.Context) error) error {
	pub, err := m.conn.NewPublisher(reconnect.PublisherConfig{Window: 1000})
	if err != nil {
		return err
	}
	relay, err := outbox.NewRelay(m.box, pub, outbox.RelayConfig{MaxAttempts: 1}) // it gives up at once: somebody watches
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(running) }()
	err = during(ctx)
	stop()
	return errors.Join(err, <-ended)
}

func (m *mailroom) letter(name string) outbox.Message {
	return outbox.Message{Key: m.queue.Name, Publishing: amqp.Publishing{Type: name}}
}

func (m *mailroom) late(ctx context.Context, pool *pgxpool.Pool) error {
	m.step("One is slow, one is quick, one is rolled back")
	m.say("Three transactions store a letter each, beside the data it is about. The first is slow, the second is committed, the")
	m.say("third is rolled back. The slow one has the lowest number, and does not hold up the others; nor is it forgotten:")
	slow, err := pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = slow.Rollback(context.WithoutCancel(ctx)) }()
	if err := m.box.Enqueue(ctx, slow, m.letter("slow")); err != nil {
		return err
	}
	changed := errors.New("changed its mind")
	quick := m.box.InTx(ctx, func(tx pgx.Tx) error { return m.box.Enqueue(ctx, tx, m.letter("quick")) })
	never := m.box.InTx(ctx, func(tx pgx.Tx) error {
		return errors.Join(m.box.Enqueue(ctx, tx, m.letter("never")), changed)
	})
	if quick != nil || !errors.Is(never, changed) {
		return errors.Join(quick, never)
	}
	m.text("first letter", m.nth(ctx, 1), "quick")
	if err := slow.Commit(ctx); err != nil {
		return err
	}
	m.box.Wake()
	m.text("second letter", m.nth(ctx, 2), "slow")
	m.figure("letters", len(m.arrived(ctx, 2)), 2)
	return nil
}

func (m *mailroom) poison(ctx context.Context) (err error) {
	const good = 200
	m.step("One that cannot be sent")
	m.say("Among %d letters, in one transaction, is one for an exchange that there is not. It steps aside with the reason, and is", good)
	m.say("sent when the exchange is there and somebody says so. Its id is the one it was stored with:")
	exchange := m.name("annex")
	lost := m.letter("for the annex")
	lost.Exchange = exchange
	letters := append(slices.Repeat([]outbox.Message{m.letter("plain")}, good/2), lost)
	letters = append(letters, slices.Repeat([]outbox.Message{m.letter("plain")}, good/2)...)
	if err := m.box.InTx(ctx, func(tx pgx.Tx) error { return m.box.Enqueue(ctx, tx, letters...) }); err != nil {
		return err
	}
	m.figure("letters, with those before", len(m.arrived(ctx, 2+good)), 2+good)
	parked, err := m.parked(ctx)
	if err != nil {
		return err
	}
	m.say("           %s", parked.Reason)
	annex := reconnect.Topology{
		Exchanges: []reconnect.Exchange{{Name: exchange, Kind: "direct"}},
		Bindings:  []reconnect.Binding{{Exchange: exchange, Key: m.queue.Name, Queue: m.queue.Name}},
	}
	if err := m.conn.Declare(ctx, annex); err != nil {
		return err
	}
	defer func() {
		ch, openErr := m.conn.Channel(context.WithoutCancel(ctx))
		if openErr == nil {
			openErr = errors.Join(ch.ExchangeDelete(exchange, false, false), ch.Close())
		}
		err = errors.Join(err, openErr)
	}()
	if err := m.box.Requeue(ctx, parked.ID); err != nil {
		return err
	}
	m.text("last letter", m.nth(ctx, 3+good), "for the annex")
	return m.nothingLeft(ctx, 0)
}

// parked waits for a letter that was given up.
func (m *mailroom) parked(ctx context.Context) (outbox.Parked, error) {
	for {
		for p, err := range m.box.Parked(ctx) {
			return p, err
		}
		pause(ctx, 5*time.Millisecond)
	}
}
